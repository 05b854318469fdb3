"""pslab --completion: what a shell completes after `pslab`: verbs, options, their values, and digests of records."""

from __future__ import annotations

from argparse import Action, ArgumentParser
from collections.abc import Mapping

from pslab.config.cluster import PRESETS
from pslab.config.run import FIELDS
from pslab.config.table import ROWS

RECORDS = '$(ls "${PSLAB_RESULTS:-results}/runs" 2>/dev/null)'
ENTRIES = "$(awk '/^- notebook:/ {n = $3; print n} /^  variant:/ {print n \"-\" $2}' notebooks/batch.yaml 2>/dev/null)"
# what stands behind a verb itself
WORDS = {"trace": RECORDS, "verify": RECORDS, "export": RECORDS,
         "list": " ".join([*ROWS, *dict.fromkeys(name for rows in ROWS.values() for name in rows)])}  # fmt: skip
SCRIPT = """\
# For bash and zsh; in ~/.bashrc or ~/.zshrc: eval "$(pslab --completion)"
[ -n "$ZSH_VERSION" ] && autoload -Uz bashcompinit && bashcompinit
_pslab() {{
    local typed="${{COMP_LINE:0:$COMP_POINT}}" words= verb before
    local current="${{typed##*[[:space:]]}}"  # bash breaks its own words at a colon, as in ssp:3
    read -r _ verb _ <<< "$typed"
    before="${{typed%"$current"}}"; before="${{before%"${{before##*[![:space:]]}}"}}"
    before="${{before##*[[:space:]]}}"
    if [ "$before" = "${{typed%%[[:space:]]*}}" ]; then words="{verbs} --help --version"; else
    case "$verb $before" in
        {cases}
    esac; fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    local head="${{current%"${{current##*:}}"}}"
    [ -n "$ZSH_VERSION" ] || [[ "$COMP_WORDBREAKS" != *:* ]] || COMPREPLY=("${{COMPREPLY[@]#"$head"}}")
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
        cases.append(f"'{verb} '*) words=\"{words} {WORDS.get(verb, '')}\";;")
    return SCRIPT.format(verbs=" ".join(verbs), cases="\n        ".join(cases))


def values(verb: str, action: Action) -> list[str]:
    """The names that the value of an option may be, and examples with parameters; none if it is no name."""
    if verb == "figures" and action.dest == "only":
        return [ENTRIES]
    if verb != "run" or action.dest not in FIELDS:
        return [*map(str, action.choices or ())]
    switch, rows = ["on", "off"] * (bool in FIELDS[action.dest].kinds), ROWS.get(action.dest, {})
    examples = [row.example for row in rows.values() if row.example]
    return [*dict.fromkeys([*FIELDS[action.dest].choices, *rows, *examples]), *switch,
            *(PRESETS if action.dest == "cluster" else ())]  # fmt: skip
