"""pslab --completion: what a shell completes after `pslab`: verbs, options, their names, and digests of records."""

from __future__ import annotations

from argparse import Action, ArgumentParser
from collections.abc import Mapping

from pslab.config.cluster import PRESETS
from pslab.config.run import FIELDS
from pslab.config.table import ROWS

OF_RECORDS = ("trace", "verify", "export")  # verbs whose words are digests
SCRIPT = """\
# For bash and zsh; in ~/.bashrc or ~/.zshrc: eval "$(pslab --completion)"
[ -n "$ZSH_VERSION" ] && autoload -Uz bashcompinit && bashcompinit
_pslab() {{
    local words= current="${{COMP_WORDS[COMP_CWORD]}}"
    if [ "$COMP_CWORD" = 1 ]; then words="{verbs} --help --version"; else
    case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}" in
        {cases}
    esac; fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _pslab pslab
"""


def script(verbs: Mapping[str, ArgumentParser]) -> str:
    """A shell's function that completes these verbs; where it knows no word, the shell completes files."""
    cases = []
    for verb, parser in verbs.items():
        options = [action for action in parser._actions if action.option_strings]
        for action in options:
            if action.nargs != 0:
                pattern = "|".join(f"'{verb} {option}'" for option in action.option_strings)
                cases.append(f'{pattern}) words="{" ".join(values(verb, action))}";;')
        words = " ".join(option for action in options for option in action.option_strings)
        digests = ' $(ls "${PSLAB_RESULTS:-results}/runs" 2>/dev/null)' if verb in OF_RECORDS else ""
        cases.append(f"'{verb} '*) words=\"{words}{digests}\";;")
    return SCRIPT.format(verbs=" ".join(verbs), cases="\n        ".join(cases))


def values(verb: str, action: Action) -> list[str]:
    """The names that the value of an option may be, or begin with; none if it is no name."""
    if verb != "run" or action.dest not in FIELDS:
        return [*map(str, action.choices or ())]
    switch = ["on", "off"] * (bool in FIELDS[action.dest].kinds)
    return [*dict.fromkeys([*FIELDS[action.dest].choices, *ROWS.get(action.dest, ())]), *switch,
            *(PRESETS if action.dest == "cluster" else ())]  # fmt: skip
