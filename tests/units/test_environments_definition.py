"""What the definition of an environment may hold (issue 5, section 1), and how it becomes steps."""

from __future__ import annotations

import pytest

from jobs.environments import definition
from jobs.environments.definition import DefinitionError, parse_definition
from jobs.environments.recipe import steps_of, variables_of


def test_lists_are_sorted_and_each_package_stands_once() -> None:
    found = parse_definition("name: tools\npython: [b, 'a >= 1, < 2', b]\ndebian: [jq]\n")
    assert found.python == ("a>=1,<2", "b")
    assert found.words == "Python: a>=1,<2, b · Debian: jq"


def test_the_digest_is_of_the_content_and_not_of_its_name_or_order() -> None:
    one = parse_definition("name: one\npython: [a, b]\n")
    assert one.digest == parse_definition("python: [b, a]\nname: two\n").digest
    assert one.digest != parse_definition("name: one\nnpm: [a, b]\n").digest


@pytest.mark.parametrize(
    ("kind", "package"),
    [
        ("python", "uvicorn[standard]==0.30.*"),
        ("python", "A.b_c-d~=1.0,!=1.1"),
        ("npm", "@scope/name@^1.2.3"),
        ("npm", "left-pad@latest"),
        ("debian", "g++"),
        ("debian", "libstdc++6:amd64=12.2.0-14+deb12u1"),
    ],
)
def test_names_with_versions_are_taken(kind: str, package: str) -> None:
    assert getattr(parse_definition(f"name: x\n{kind}: ['{package}']\n"), kind) == (package,)


@pytest.mark.parametrize(
    ("kind", "package"),
    [
        ("python", "pkg @ https://example.org/x.whl"),
        ("python", "git+https://example.org/x"),
        ("python", "./here"),
        ("python", "--index-url=https://example.org"),
        ("python", "-r/etc/shadow"),
        ("python", "a; python_version<'4'"),
        ("npm", "https://example.org/x.tgz"),
        ("npm", "file:../x"),
        ("npm", "--registry=https://example.org"),
        ("npm", "user/repository"),
        ("npm", "x@git+ssh://example.org/x"),
        ("npm", "x@npm:other"),
        ("debian", "-oDir::Etc=/tmp"),
        ("debian", "./x.deb"),
        ("debian", "jq/experimental"),
        ("debian", "jq; id"),
        ("debian", "jq-"),
        ("debian", "."),
        ("python", ""),
    ],
)
def test_what_is_no_name_is_refused_with_its_list_and_an_example(kind: str, package: str) -> None:
    with pytest.raises(DefinitionError, match=f"^{kind}: .* is no package; write a name"):
        parse_definition(f'name: x\n{kind}: ["{package}"]\n')


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("python: [a]", "name: must be text"),
        ("name: ''\npython: [a]", "name: has 1 to 100"),
        (f"name: {'x' * 101}\npython: [a]", "name: has 1 to 100"),
        ("name: x", "The environment is empty"),
        ("name: x\npython: []", "The environment is empty"),
        ("name: x\npython: a", "python: must be a list"),
        ("name: x\npython: [1]", "python: must be a list"),
        ("name: x\nruby: [a]", "ruby: unknown key; an environment has name, python"),
        ("name: x\nname: y", "name: this key stands twice"),
        ("- a", "An environment is a mapping"),
        ("{", "The definition is not YAML"),
        ("a: &b 1\nc: *b", "no anchors and aliases"),
        ("name: x\nimage: debian\nnpm: [a]", "npm and image do not go together"),
        ("name: x\nimage: 'a b'", "image: must be the name"),
        ("name: x\ndockerfile: RUN id", "dockerfile: has no line that begins with FROM"),
        ("name: x\ndockerfile: 1", "dockerfile: must be text"),
        (f"name: x\ndockerfile: 'FROM a {'x' * 16_400}'", "dockerfile: is larger"),
        (f"name: x\npython: [{', '.join(f'p{n}' for n in range(201))}]", "at most 200 packages"),
        ("name: x\n#" + "x" * 65_536, "larger than 64 KiB"),
    ],
)
def test_a_mistake_is_named_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(DefinitionError, match=sentence) as caught:
        parse_definition(text)
    assert "\n" not in str(caught.value)


def test_an_image_and_a_dockerfile_are_for_an_engine() -> None:
    image = parse_definition("name: x\nimage: registry.example.org:5000/a/b:1.2\n")
    assert image.is_for_engine
    assert image.words == "Image registry.example.org:5000/a/b:1.2"
    written = parse_definition("name: x\ndockerfile: |\n  FROM debian:12\n  RUN id\n")
    assert (written.dockerfile, written.words) == ("FROM debian:12\nRUN id\n", "Dockerfile")
    assert not parse_definition("name: x\nnpm: [a]\n").is_for_engine


def test_each_kind_is_a_step_and_libraries_come_before_what_is_built_with_them() -> None:
    steps = steps_of(parse_definition("name: x\nnpm: [c]\npython: [b]\ndebian: [aa]\n"))
    assert [step.title for step in steps] == [
        "Debian packages",
        "Python packages",
        "npm packages",
        "Permissions",
    ]
    assert [list(step.packages) for step in steps] == [["aa"], ["b"], ["c"], []]
    assert [variables_of(step)["INTO"] for step in steps[1:]] == [
        "/ump/env/python",
        "/ump/env/node",
        "/ump/env",
    ]


def test_packages_are_arguments_and_never_part_of_a_script() -> None:
    (step, _) = steps_of(definition.Definition("x", debian=("a", "b")))
    assert step.argv[:2] == ["bash", "-c"]
    assert step.argv[3:] == ["bash", "a", "b"]
    assert '-- "$@"' in step.argv[2]
