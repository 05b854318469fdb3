#!/bin/bash
#SBATCH --nodes=2 --exclusive --time=00:30:00
# In a folder of `pslab init`, with pslab on the PATH of every host: sbatch slurm.sh
set -eu
export RAY_AUTH_MODE=token RAY_worker_niceness=0
ray get-auth-token --generate > /dev/null # into the home folder, which every host sees
address=$(hostname --all-ip-addresses | cut --delimiter=" " --fields=1)
srun --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" \
    ray symmetric-run --address "$address:6379" --min-nodes "$SLURM_NNODES" --num-cpus "$SLURM_CPUS_ON_NODE" -- \
    pslab figures --only 85_many_machines --set workers=4 --no-images
