"""A release holds what it should, and says truly what it brings along."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from datetime import UTC, datetime
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tools.release import build, closure, contents, first_minutes, licences, oldest, sbom, typed
from tools.release.project import ROOT, USER_EXTRAS, commit_time, export, pins, requirements

import headprune as hp

EPOCH = 1_700_000_000
needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="releases are made from a git checkout")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Wheel, sdist and the tree of the last commit they were built from."""
    folder = tmp_path_factory.mktemp("release")
    tree = export(folder / "tree")
    build.build(tree, folder / "dist", EPOCH)
    return *contents.pick((folder / "dist").iterdir()), tree


def said(**fields):
    """Metadata of a package that does not exist."""
    message = Message()
    for name, value in fields.items():
        for one in value if isinstance(value, list) else [value]:
            message[name.replace("_", "-")] = one
    return message


@needs_git
def test_wheel_and_sdist_hold_what_they_should(built):
    """Every file of the package, its metadata, and nothing else."""
    assert contents.problems(*built) == []


@needs_git
@pytest.mark.parametrize(
    ("drop", "add", "told"),
    [
        ("headprune/py.typed", None, "wheel: headprune/py.typed is missing"),
        ("headprune/lab/report/page/page.js", None, "wheel: nothing matches headprune/lab/report/page/page.js"),
        ("presets_toml/", None, "wheel: nothing matches headprune/lab/experiments/presets_toml/*.toml"),
        ("licenses/LICENSE", None, f"wheel: headprune-{hp.__version__}.dist-info/licenses/LICENSE is missing"),
        (None, "tests/test_cli.py", "wheel: tests/test_cli.py does not belong there"),
        (None, "headprune/a.pyc", "wheel: headprune/a.pyc is of a kind that wheels of headprune do not hold"),
        (None, "headprune/rows.csv", "wheel: headprune/rows.csv does not belong there"),
    ],
)
def test_a_wheel_with_too_little_or_too_much_is_named(built, tmp_path, drop, add, told):
    """The file that is missing or should not be there stands in the message."""
    wheel, sdist, tree = built
    changed = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            if drop is None or drop not in name:
                new.writestr(name, old.read(name))
        if add:
            new.writestr(add, "")
    assert told in contents.problems(changed, sdist, tree)


@needs_git
def test_what_disagrees_with_the_tree_is_named(built, tmp_path):
    """Versions, the list of files, and every byte of them."""
    wheel, sdist, tree = built
    other = tmp_path / "tree"
    shutil.copytree(tree, other)
    (other / "CITATION.cff").write_text("version: 9.9.9\n")
    (other / "CHANGELOG.md").write_text("# Changelog\n")
    (other / "benchmarks" / "forgotten.py").write_text("")
    (other / "src" / "headprune" / "registry.py").write_text("other = 1\n")
    found = contents.problems(wheel, sdist, other)
    assert f"CITATION.cff says version 9.9.9, headprune.__version__ is {hp.__version__}" in found
    assert f"CHANGELOG.md has no section for {hp.__version__}" in found
    assert "sdist: benchmarks/forgotten.py is missing" in found
    assert "wheel: headprune/registry.py is not that of the tree" in found
    assert "sdist: src/headprune/registry.py is not that of the tree" in found


@needs_git
def test_checksums_are_read_by_sha256sum(built):
    """SHA256SUMS is in the format that people check with."""
    wheel, sdist, _ = built
    text = build.checksums([wheel, sdist])
    words = ["sha256sum", "--check", "--strict", "-"]
    assert subprocess.run(words, input=text, text=True, cwd=wheel.parent, capture_output=True).returncode == 0
    spoiled = ("0" if text[0] != "0" else "1") + text[1:]
    assert subprocess.run(words, input=spoiled, text=True, cwd=wheel.parent, capture_output=True).returncode == 1


def test_the_version_is_read_without_importing():
    """And is the one that importing gives."""
    assert contents.version_of(ROOT) == hp.__version__


@needs_git
def test_all_public_names_are_checked_for_types(built):
    """The list read from the wheel is `headprune.__all__` of the commit."""
    assert typed.public_names(built[0]) == hp.__all__


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ({"License_Expression": "MIT OR Apache-2.0", "License": "other"}, "MIT OR Apache-2.0"),
        ({"License": "Apache 2.0"}, "Apache-2.0"),
        ({"License": "word " * 100, "Classifier": ["License :: OSI Approved :: BSD License"]}, "BSD"),
        ({"Classifier": ["License :: OSI Approved", "License :: OSI Approved :: MIT License"]}, "OSI Approved AND MIT"),
        ({"License": "Beerware"}, "Beerware"),
        ({"Classifier": ["Programming Language :: Python"]}, ""),
    ],
)
def test_a_licence_is_read_from_whatever_field_states_it(fields, licence):
    """The expression first, then a short name, then classifiers."""
    assert licences.licence_of(said(**fields)) == licence


@pytest.mark.parametrize(
    ("licence", "verdict"),
    [
        ("MIT", True),
        ("GPL-3.0-or-later", False),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only AND MIT", False),
        ("MIT AND (GPL-3.0-only OR Apache-2.0)", True),
        ("(MIT OR ISC) AND GPL-3.0-only", False),
        ("MIT OR ISC AND GPL-3.0-only", True),  # AND binds more closely
        ("Apache-2.0 WITH LLVM-exception", True),
        ("Apache-2.0 WITH Other-exception", False),
        ("MIT MIT", False),
        ("(MIT", False),
        ("MIT AND", False),
        ("", False),
    ],
)
def test_an_expression_is_allowed_if_allowed_licences_meet_it(licence, verdict):
    """Each of an AND, one of an OR; what cannot be read is not allowed."""
    assert licences.allowed(licence) is verdict


def test_a_refused_licence_names_the_package():
    """The message has package, version, licence and who brings it."""
    rows = [("good", "1.0", "MIT", "core"), ("bad", "2.0", "AGPL-3.0-only", "ray"), ("mute", "3.0", "", "core")]
    first, second = licences.refused(rows)
    assert first.startswith("bad 2.0 (of ray): licence 'AGPL-3.0-only' is not on the list")
    assert second.startswith("mute 3.0 (of core): licence 'not stated' is not on the list")


def test_a_closure_follows_extras_and_markers_and_ends():
    """What an extra brings comes only with it; circles are walked once; a CUDA build's libraries are left out."""
    packages = {
        "a": said(
            Version="1", Requires_Dist=["B[fast]>=1", "w; sys_platform == 'none'", "nvidia-x", "d; extra == 'e'"]
        ),
        "b": said(Version="2", Requires_Dist=["a", "c; extra == 'fast'", "d; extra == 'slow'"]),
        "c": said(Version="3"),
    }
    found = closure.closure([Requirement("a")], packages.__getitem__)
    assert {name: package.needs for name, package in found.items()} == {"a": {"b"}, "b": {"a", "c"}, "c": set()}


def test_a_missing_package_is_named():
    """Rather than left out of the lists."""
    with pytest.raises(LookupError, match="no-such-package is needed but not installed"):
        closure.closure([Requirement("no-such-package")])


def test_an_unpinned_or_other_version_is_refused():
    """The lists speak of constraints.txt, so what is installed must be that."""
    with pytest.raises(LookupError, match=r"999 is installed, constraints.txt says"):
        closure.as_pinned(look=lambda name: said(Version="999"))
    with pytest.raises(LookupError, match=r"unheard-of is needed by core but not pinned"):
        closure.as_pinned(look=lambda name: said(Version=pins().get(name, "1"), Requires_Dist=["unheard-of"]))


def test_every_dependency_has_an_allowed_licence():
    """Of the core and of every extra for users, as installed here."""
    assert licences.refused(licences.table()) == []


@pytest.mark.skipif(
    sys.platform != "linux" or sys.version_info[:2] != (3, 11), reason="the page is of Linux with Python 3.11"
)
def test_the_page_of_licences_is_up_to_date():
    """docs/licences.md is what `python -m tools.release.licences` writes."""
    assert licences.PAGE.read_text() == licences.page(licences.table())


@pytest.fixture(scope="module")
def bill(tmp_path_factory):
    """The bill of materials of a file that stands for the wheel."""
    wheel = tmp_path_factory.mktemp("bill") / "some.whl"
    wheel.write_bytes(b"wheel")
    return wheel, sbom.text(wheel, EPOCH)


def test_the_bill_of_materials_is_valid(bill):
    """By CycloneDX's own schema, which refuses a spoiled one."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(bill[1]) is None
    assert validator.validate_str(bill[1].replace('"scope": "required"', '"scope": "perhaps"')) is not None


def test_the_bill_of_materials_is_complete_and_repeatable(bill):
    """Every package of the closure once, at its pinned version, with edges that lead somewhere."""
    wheel, text = bill
    document = json.loads(text)
    packages, _ = closure.as_pinned()
    listed = {part["name"]: part for part in document["components"]}
    assert len(listed) == len(document["components"])
    assert {name: part["version"] for name, part in listed.items()} == {name: pins()[name] for name in packages}
    assert {name for name, part in listed.items() if part["scope"] == "required"} == set(
        closure.closure(requirements())
    )
    own = document["metadata"]["component"]["bom-ref"]
    edges = {edge["ref"]: edge["dependsOn"] for edge in document["dependencies"]}
    assert set(edges) == {own, *(part["bom-ref"] for part in listed.values())}
    assert {ref for refs in edges.values() for ref in refs} == set(edges) - {own}
    assert sbom.text(wheel, EPOCH) == text


def test_the_oldest_versions_are_the_lower_bounds(tmp_path):
    """Of core and of the extras asked for; torch may stay as pinned."""
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "headprune"\ndependencies = ["torch>=2.6", "rich>=13,<99", "typer~=0.19.1"]\n'
        '[project.optional-dependencies]\nsmall = ["rich>=14", "one==1.2"]\nall = ["headprune[small]"]\nbad = ["x<3"]\n'
    )
    assert oldest.constraints(root=tmp_path) == "rich==13\ntorch==2.6\ntyper==0.19.1\n"
    assert oldest.constraints("all", root=tmp_path, keep_torch=True) == (
        "one==1.2\nrich==14\ntorch==2.13.0\ntyper==0.19.1\n"
    )
    with pytest.raises(ValueError, match="no lower bound for x"):
        oldest.constraints("bad", root=tmp_path)


def test_every_dependency_states_a_lower_bound_that_the_pins_meet():
    """Also those of the extras; and constraints.txt lies within every range."""
    assert oldest.constraints(*USER_EXTRAS)
    pinned = pins()
    for part in closure.PARTS:
        for asked in requirements(part):
            assert asked.specifier.contains(pinned[closure.canonicalize_name(asked.name)]), asked


def test_a_newcomer_meets_the_readmes_first_example():
    """The block that `first_minutes` runs is a program that tells the price of a smaller model."""
    compile(first_minutes.first_example(), "README.md", "exec")
    assert "print(shrunk)" in first_minutes.first_example()


@needs_git
@pytest.mark.nightly
def test_two_builds_are_the_same_and_the_sdist_builds_the_wheel(tmp_path):
    """The whole of `make release`, into a folder; its sums hold."""
    files = build.release(tmp_path / "dist")
    assert len(files) == 4
    done = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path / "dist")
    assert done.returncode == 0
    with zipfile.ZipFile(contents.pick(files)[0]) as wheel:
        dates = {info.date_time for info in wheel.infolist()}
    day = datetime.fromtimestamp(commit_time(), UTC)
    assert {date[:3] for date in dates} == {(day.year, day.month, day.day)}  # the commit's, not today's


def test_every_pinned_package_is_locked_by_hash_but_torch():
    """`make lock` was run since a pin was changed; builds of torch differ by where they come from."""
    lines = (ROOT / "requirements-dev.txt").read_text().replace("\\\n", " ").splitlines()
    locked = {words[0]: words[1:] for line in lines if (words := line.split("#")[0].split())}
    assert {f"{name}=={version}" for name, version in pins().items() if name != "torch"} == {
        f"{canonicalize_name(name)}=={version}" for name, version in (one.split("==") for one in locked)
    }
    assert all(hashes and all(one.startswith("--hash=sha256:") for one in hashes) for hashes in locked.values())


def test_what_is_promised_about_security_stands_where_it_says():
    """SECURITY.md is there, and so are the files and targets that it names."""
    named = re.findall(r"`((?:src|docs|tests)/[^`]*|make [a-z-]+)`", (ROOT / "SECURITY.md").read_text())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"make fuzz", "docs/robustness.md", "src/headprune/limits.py"} <= set(named)
    for one in named:
        assert one.removeprefix("make ") in targets if one.startswith("make ") else (ROOT / one).exists(), one


@needs_git
@pytest.mark.nightly
def test_types_reach_a_user_and_not_without_the_marker(built, tmp_path):
    """mypy --strict passes a user's script against the installed wheel; without py.typed it does not."""
    wheel = built[0]
    assert typed.problems(wheel) == []
    bare = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(bare, "w") as new:
        record = f"headprune-{hp.__version__}.dist-info/RECORD"
        for name in old.namelist():
            if name == record:
                kept = [line for line in old.read(name).decode().splitlines() if "py.typed" not in line]
                new.writestr(name, "\n".join(kept) + "\n")
            elif not name.endswith("py.typed"):
                new.writestr(name, old.read(name))
    assert any("py.typed" in line or "has no type" in line for line in typed.problems(bare))


@needs_git
@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_the_first_minutes_of_a_newcomer(built, tmp_path):
    """Install, version, help, completion and the README's first example, in a clean environment."""
    assert len(list(first_minutes.walk(built[0], Path(tmp_path)))) == 10
