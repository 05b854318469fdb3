"""What the site has beside the files of docs/: pages from the table of names, the notebooks, and texts at the root.

A hook of mkdocs (`make site`); nothing here is written into docs/. A page of a policy is its row of
`pslab/config/table.py`, its docstring and its code. A page of a study is its notebook, with the outputs of
results/notebooks where that was executed from the same cells.
"""

from __future__ import annotations

import inspect
import json
import os
import posixpath
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pslab.config import plain_yaml
from pslab.config.cluster import Cluster
from pslab.config.parameters import Parameter, parameters
from pslab.config.run import FIELDS, Run
from pslab.config.table import ROWS, Row
from pslab.lab.commands.list import Listing, entries, markdown

ROOT = Path(__file__).resolve().parent.parent
EACH = "15_each_policy"  # the notebook with a figure of every policy
KINDS = {"sync": "Synchronization", "prune": "Pruning", "rate": "Rates", "order": "Request orders"}
#: Texts that are not in docs/, and their pages.
TEXTS = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "results/README.md": "records.md",
         "data/README.md": "data.md"}  # fmt: skip
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def results() -> Path:
    """Where executed notebooks and their figures are."""
    return Path(os.environ.get("PSLAB_RESULTS", ROOT / "results"))


def notebooks() -> list[Path]:
    return sorted((ROOT / "notebooks").glob("*.ipynb"))


@cache
def listed() -> dict[tuple[str, str], Listing]:
    """The names that have a page."""
    return {(each.kind, each.name): each for each in entries() if each.kind in KINDS}


def page_of(path: str) -> str | None:
    """The page of a file of the project, both relative to the root; None if it has none."""
    if path in TEXTS:
        return TEXTS[path]
    if path.startswith("docs/") and not path.endswith(".py"):
        return path.removeprefix("docs/")
    return f"studies/{Path(path).stem}.md" if path.startswith("notebooks/") and path.endswith(".ipynb") else None


def generated() -> dict[str, Callable[[], str]]:
    """Each page that has no file in docs/, and what writes it."""
    texts = {page: lambda path=path: linked((ROOT / path).read_text(), path) for path, page in TEXTS.items()}
    studies = {f"studies/{path.stem}.md": lambda path=path: study(path) for path in notebooks()}
    policies = {f"policies/{kind}/{name}.md": lambda each=each: policy(each) for (kind, name), each in listed().items()}
    kinds = {f"policies/{kind}.md": lambda kind=kind: page_of_kind(kind) for kind in tables()}
    return {**texts, **studies, **policies, **kinds, "fields.md": fields, "gallery.md": gallery}


def navigation(nav: list[Any]) -> list[Any]:
    """The navigation of mkdocs.yml, whose sections Policies and Studies get their pages."""
    more = {
        "Policies": [*({title: [f"policies/{kind}.md", *(f"policies/{kind}/{each}.md" for known, each in listed()
                                                         if known == kind)]} for kind, title in KINDS.items()),
                     {"Other names": [f"policies/{kind}.md" for kind in tables() if kind not in KINDS]}],
        "Studies": [f"studies/{path.stem}.md" for path in notebooks() if not path.stem.startswith("00_")],
    }  # fmt: skip
    return [{title: [*below, *more.get(title, [])] if isinstance(below, list) else below}
            for section in nav for title, below in section.items()]  # fmt: skip


def uris(nav: Any) -> Iterator[str]:
    """The pages that a navigation names."""
    if isinstance(nav, str):
        yield nav
    for each in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from uris(each)


@cache
def tables() -> dict[str, str]:
    """The table of names of each kind, whose names that have a page are links to it."""
    text = markdown(entries(), lambda each: f"{each.kind}/{each.name}.md" if each.kind in KINDS else "")
    return {kind: table.strip() for kind, table in re.findall(r"(?ms)^## (\w+)\n(.*?)(?=^## |\Z)", text)}


def page_of_kind(kind: str) -> str:
    """The page of a kind: its names, and how to write one of one's own."""
    return f"# {KINDS.get(kind, kind.capitalize())}\n\n" + tables()[kind].replace("](how-to/", "](../how-to/")


def overview() -> str:
    """The page of all kinds, each of which has a page of its own."""
    about = markdown(entries()).partition("\n## ")[0]
    named = {kind: re.findall(r"(?m)^\| \[?`([^`:\[]+)", table) for kind, table in tables().items()}
    rows = (f"| [{KINDS.get(kind, kind)}](policies/{kind}.md) | {', '.join(f'`{name}`' for name in each)} |"
            for kind, each in named.items())  # fmt: skip
    return "\n".join([about, "", "| kind | names |", "|---|---|", *rows])


def fields() -> str:
    """The page of the fields of Run and of Cluster."""
    lines = ["# Fields of Run and Cluster", ""]
    for cls in (Run, Cluster):
        lines += [f"## {cls.__name__}", "", *table(parameters(cls).values()), ""]
    return "\n".join(lines)


def table(found: Iterable[Parameter]) -> list[str]:
    """Parameters with what they are, what is allowed, and their defaults."""
    rows = [f"| `{each.name}` | {cell(each.doc)} | {cell(each.allowed)} | {cell(each.shown)} |" for each in found]
    return ["| | what it is | values | default |", "|---|---|---|---|", *rows]


def cell(text: str) -> str:
    """A text in a table."""
    return text.replace("|", "&#124;").replace("*", r"\*")


# -- links -----------------------------------------------------------------------------------------


def links(text: str) -> list[str]:
    """The targets of all links of a text, but those in code."""
    return [target for piece in CODE.split(text)[::2] for target in LINK.findall(piece)]


def linked(text: str, path: str) -> str:
    """The text of a file of the project, with links from its page to pages."""
    here = posixpath.dirname(page_of(path) or "")

    def replaced(found: re.Match[str]) -> str:
        target, hash_, anchor = found[1].partition("#")
        page = page_of(posixpath.normpath(posixpath.join(posixpath.dirname(path), target))) if target else None
        return f"]({posixpath.relpath(page, here or '.')}{hash_}{anchor})" if page else found[0]

    pieces = CODE.split(text)
    pieces[::2] = [LINK.sub(replaced, piece) for piece in pieces[::2]]
    return "".join(pieces)


# -- a policy --------------------------------------------------------------------------------------


def policy(entry: Listing) -> str:
    """The page of a policy, a pruning rule, a rate or an order."""
    row = ROWS[entry.kind][entry.name]
    text = re.sub(r"\n*^Source: .*$", "", entry.text, flags=re.MULTILINE).strip()
    example, lines = row.example or row.name, [f"# {entry.name}", "", f"**{entry.what}.**", ""]
    lines += [f"Source: {entry.source}.", ""] if entry.source else []
    lines += [text, ""] if text else []
    own = f"{EACH}-{entry.kind}-{entry.name}"
    if own in figures(EACH):
        lines += [picture(own, "../../"), "", f"*From [{EACH}](../../studies/{EACH}.md).*", ""]
    else:
        lines += [f"*`pslab figures --only {EACH}` draws its curve, and `make site` shows it here.*", ""]
    lines += ["## Use", "", "```sh", entry.command]
    lines += [f"pslab check {row.small or example}"] if entry.kind == "sync" else []
    lines += ["```", "", "```python", f'Run({entry.kind}="{example}")', "```", ""]
    if entry.parameters:
        lines += [f"In full: `{entry.form}`.", "", *table(parameters(row.load()).values()), ""]
    if found := [path for path in notebooks() if studies(path, entry)]:
        lines += ["## In the studies", "", *(f"- [{path.stem}](../../studies/{path.stem}.md): {question(path)}"
                                             for path in found), ""]  # fmt: skip
        drawn = [name for path in found if path.stem != EACH for name in figures(path.stem) if shows(name, row)]
        lines += [f"{picture(name, '../../')}\n" for name in drawn[:1]]
    return "\n".join([*lines, "## The rule", "", f"From `{entry.file}`:", "", "```python", code(row.load()), "```", ""])


def code(loaded: Any) -> str:
    """The source of a class, without its docstring, which the page has above."""
    return inspect.getsource(loaded).replace(f'"""{loaded.__doc__}"""', '"""..."""').rstrip()


def studies(path: Path, entry: Listing) -> bool:
    """Whether a notebook names it; of what every run has by default, no notebook is a study."""
    if entry.name == FIELDS[entry.kind].default:
        return False
    needs = ":" if ":" in re.sub(r"\[.*", "", entry.form) else "[:\"']"
    return re.search(rf"[\"']{entry.name}{needs}", codes()[path.stem]) is not None


@cache
def codes() -> dict[str, str]:
    """The code of each notebook, and the parameters of its variants."""
    found = {path.stem: [each.source for each in cells(path) if each.cell_type == "code"] for path in notebooks()}
    for item in plain_yaml.read(ROOT / "notebooks" / "batch.yaml"):
        found[item["notebook"]].append(str(item.get("set")))
    return {stem: "\n".join(each) for stem, each in found.items()}


def figures(stem: str) -> list[str]:
    """The figures of a notebook and its variants that there are, accuracy first."""
    found = {path.stem for path in (results() / "figures").glob(f"{stem}-*") if path.suffix in (".svg", ".html")}
    return sorted(found, key=lambda name: (not name.endswith("-accuracy"), name))


def picture(name: str, up: str, link: str = "") -> str:
    """A figure on a page that is so far `up` from the root: its image, or without one its page, as it is in a notebook.

    An image may lead to a link; of figures that were saved without images there are only HTML and JSON.
    """
    file = results() / "figures" / f"{name}.svg"
    if file.is_file():
        image = f"![{title(name)}]({up}figures/{name}.svg)"
        return f"[{image}{{ loading=lazy }}]({link})" if link else image
    layout = json.loads(file.with_suffix(".json").read_text()).get("layout", {})
    return (f'<iframe src="{up}figures/{name}.html" title="{title(name)}" loading="lazy" '
            f'style="height: {layout.get("height", 400) + 130}px"></iframe>')  # fmt: skip


def gallery() -> str:
    """The page of all figures that there are, study by study."""
    about = ("Every figure here was drawn on the machine that built these pages, from records that `pslab verify` "
             "checks; `make figures-all` draws all of them. A figure leads to its study.")  # fmt: skip
    lines = ["# Gallery", "", about, ""]
    for path in notebooks():
        if names := figures(path.stem):
            link = f"studies/{path.stem}.md"
            shown = (f"{picture(name, '', link)}\n\n[{title(name)}]({link})\n{{ .about }}\n" for name in names)
            lines += [f"## {question(path)}", "", '<div class="gallery" markdown>',
                      *(f"<div markdown>\n\n{each}\n</div>" for each in shown), "</div>", ""]  # fmt: skip
    return "\n".join(lines if len(lines) > 4 else [*lines, "Nothing is drawn yet."])


def title(name: str) -> str:
    """What a figure shows: the first line of its caption."""
    text = results() / "figures" / f"{name}.txt"
    words = text.read_text().partition("\n")[0] if text.is_file() else name
    return re.sub(r"[\[\]\"<>]", "", words)


def shows(name: str, row: Row) -> bool:
    """Whether a figure has a curve or a bar of this name."""
    label = re.split(r"[,{]", row.label)[0].strip() or row.name
    file = results() / "figures" / f"{name}.json"
    return file.is_file() and re.search(rf'"name": ?"{re.escape(label)}[," ]', file.read_text()) is not None


# -- a study ---------------------------------------------------------------------------------------


@cache
def cells(path: Path) -> list[Any]:
    import nbformat

    found: list[Any] = nbformat.read(path, 4).cells  # type: ignore[no-untyped-call]
    return found


def question(path: Path) -> str:
    """The title of a notebook."""
    return str(cells(path)[0].source).partition("\n")[0].removeprefix("# ")


def study(path: Path) -> str:
    """The page of a notebook."""
    done = results() / "notebooks" / path.name
    shown = cells(done) if done.is_file() else []
    sources = [[each.source for each in some if "injected-parameters" not in each.metadata.get("tags", [])]
               for some in (shown, cells(path))]  # fmt: skip
    executed = sources[0] == sources[1]
    how = "as it was executed" if executed else "not executed yet: `pslab figures --only " + path.stem + "`"
    lines = []
    for number, each in enumerate(shown if executed else cells(path)):
        if each.cell_type == "markdown":
            lines += [linked(each.source, f"notebooks/{path.name}"), ""]
        else:
            lines += ["```python", each.source, "```", "", *outputs(each)]
        if not number:
            lines += [f"*The notebook `notebooks/{path.name}`, {how}.*", ""]
    return "\n".join(lines)


def outputs(each: Any) -> Iterator[str]:
    """What a cell has shown: its saved figures, which their captions name, as images; tables, claims and captions."""
    for output in each.get("outputs", []):
        html = "".join(output.get("data", {}).get("text/html", ""))
        if html and "application/vnd.plotly.v1+json" not in output.data and "<script" not in html:
            for name in re.findall(r"<p id='([\w.-]+)'", html):
                if any((results() / "figures" / f"{name}{kind}").is_file() for kind in (".svg", ".html")):
                    yield from (picture(name, "../"), "")
            yield from ("<div class=\"output\">" + re.sub(r"\s*\n\s*", " ", html) + "</div>", "")


# -- mkdocs ----------------------------------------------------------------------------------------


def repository(root: Path = ROOT) -> str:
    """The address of the repository: what `[project.urls]` of pyproject.toml calls Repository, or else where this
    checkout was cloned from; "" if neither is an address on the web."""
    given = tomllib.loads((root / "pyproject.toml").read_text())["project"].get("urls", {}).get("Repository")
    asked = ["git", "-C", str(root), "config", "remote.origin.url"]
    url = given or subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    found = re.fullmatch(r"(?:(?:https?|ssh)://(?:[^@/]*@)?|git@)([\w.-]+\.\w+)[:/](.+?)(?:\.git)?/?", url)
    return f"https://{found[1]}/{found[2]}" if found else ""


def on_config(config: Any) -> Any:
    url = repository()
    config.nav = navigation(config.nav) + ([{"Repository": url}] if url else [])  # a repo_url would load from elsewhere
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for uri, write in generated().items():
        files.append(File.generated(config, uri, content=write()))
    folder = results() / "figures"
    pages = [path for path in sorted(folder.glob("*.html")) if not path.with_suffix(".svg").is_file()]
    for drawn in [*sorted(folder.glob("*.svg")), *pages, *(folder.glob("plotly.min.js") if pages else ())]:
        files.append(File.generated(config, f"figures/{drawn.name}", abs_src_path=str(drawn)))
    return files


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    uri = page.file.src_uri
    if page.parent is None:
        page.meta["hide"] = ["navigation"]  # it would name this page alone
    if uri.startswith("how-to/"):
        page.meta["search"] = {"boost": 3}  # a question is answered before a study that has its words
    if uri == "policies.md":
        return overview()
    return text if uri in generated() else linked(text, f"docs/{uri}")
