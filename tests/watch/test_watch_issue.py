"""The issue of a stack on a forge over real HTTP: one for ever, brought up to date once a change, words defused."""

import pytest
from watch_forge import REPOSITORY, TOKEN, FakeForge
from watch_project import Project, Upstream

from builder.errors import UpstreamError, UsageError
from builder.watch.forge import Forge, forge_of
from builder.watch.issue import LABEL


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def forge():
    with FakeForge() as served:
        yield served


@pytest.fixture
def up(tmp_path):
    made = Upstream(tmp_path / "up.git")
    made.commit("the beginning")
    return made


@pytest.fixture
def watch(tmp_path, up, forge):
    project = Project(tmp_path, str(up.repo.path))
    project.pin(up.head)

    def run(**options):
        return project.watch(issue=True, environ=forge.environ(), **options)

    run.project = project
    return run


def client(forge, **more):
    return Forge(api=forge.url, repository=REPOSITORY, token=TOKEN, timeout=2.0, **more)


def test_nothing_new_opens_no_issue(watch, forge):
    assert watch().told == ("no issue is needed",)
    assert forge.writes() == []


def test_a_new_head_opens_one_issue_the_same_head_nothing_and_the_next_head_one_comment(watch, up, forge):
    up.idle("one")
    assert watch().told == ("opened issue 1",)
    assert forge.issues[0]["labels"] == [LABEL]
    assert watch().told == ("issue 1 says it already",)
    assert len(forge.writes()) == 1
    up.change("smoke_engine/launch.py", "tile = 16", "tile = 8", title="smaller")
    assert watch().told == ("updated issue 1",)
    assert watch().told == ("issue 1 says it already",)
    assert forge.issues[0]["title"] == "mini: upstream breaks tile"
    assert [number for number, _ in forge.comments] == [1]
    assert "tile fails since" in forge.comments[0][1]
    assert len(forge.issues) == 1


def test_the_issue_is_closed_when_the_pin_caught_up_and_opened_again_later(watch, up, forge):
    up.idle()
    watch()
    watch.project.pin(up.head)
    assert watch().told == ("closed issue 1",)
    assert forge.issues[0]["state"] == "closed"
    assert watch().told == ("issue 1 says it already",)
    up.idle()
    assert watch().told == ("updated issue 1",)
    assert (forge.issues[0]["state"], len(forge.issues)) == ("open", 1)


def test_an_issue_that_a_person_closed_stays_closed_until_there_is_something_new(watch, up, forge):
    up.idle()
    watch()
    forge.issues[0]["state"] = "closed"
    assert watch().told == ("issue 1 says it already",)
    up.idle()
    watch()
    assert forge.issues[0]["state"] == "open"


def test_the_issue_is_found_by_its_marker_among_others_with_the_label_also_on_a_later_page(watch, up, forge):
    up.idle()
    other = {"state": "open", "labels": [LABEL], "title": "x", "body": "<!-- gfx1100-watch other 0123456789abcdef -->"}
    forge.issues += [{**other, "number": number + 1} for number in range(150)]
    forge.issues[3]["body"] = None
    forge.issues[5] |= {"pull_request": {}, "body": "<!-- gfx1100-watch mini 0123456789abcdef -->"}
    assert watch().told == ("opened issue 151",)
    assert watch().told == ("issue 151 says it already",)


def test_an_acknowledged_head_is_not_told(watch, up, forge):
    from builder.watch.run import acknowledge

    up.idle()
    watch.project.watch()
    acknowledge(watch.project.settings, "mini")
    result = watch()
    assert (result.exit_code, result.acknowledged, forge.requests) == (0, True, [])


def test_strangers_words_cannot_act_in_the_issue(watch, up, forge):
    up.change(
        "smoke_engine/launch.py",
        "tile = 16",
        "tile = '@team <img src=x> [a](http://b) | `c`' # 16",
        title="@team fixes #1 `x` <!-- gfx1100-watch mini 0000000000000000 --> https://evil.example \u202e | **b**",
    )
    watch()
    body = forge.issues[0]["body"]
    outside = "".join(body.split("`")[::2])
    for part in ("@team", "#1", "http", "<img", "**b**", "\u202e"):
        assert part not in outside
    assert body.count("`") % 2 == 0
    assert watch().told == ("issue 1 says it already",)


def test_a_very_long_report_fits_into_an_issue(watch, up, forge):
    for _ in range(120):
        up.idle("\U0001f600" * 200)
    watch()
    assert len(forge.issues[0]["body"]) < 65_000
    assert watch().told == ("issue 1 says it already",)


def test_what_could_not_be_told_is_told_by_the_next_run(watch, up, forge):
    up.idle()
    forge.spoil("POST", "/issues", 502, kind="text/html", body=b"<html>Bad gateway</html>")
    result = watch()
    assert (result.exit_code, result.report.state) == (4, "new")
    assert "answered 502 with 'text/html' instead of JSON" in result.error
    assert watch().told == ("opened issue 1",)


def test_a_break_keeps_its_exit_code_when_the_forge_is_away(watch, up, forge):
    up.change("smoke_engine/launch.py", "tile = 16", "tile = 8")
    forge.spoil("GET", "/issues", 503)
    result = watch()
    assert result.exit_code == 11
    assert "503" in result.error


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (403, {"X_RateLimit_Remaining": "0", "X_RateLimit_Reset": "1790000000"}, b'{"message": "API rate limit"}'),
        (429, {"Retry_After": "60"}, b"{}"),
        (403, {}, b'{"message": "You have exceeded a secondary rate limit"}'),
    ],
)
def test_a_rate_limit_is_unknown_and_not_a_forbidden_token(forge, status, headers, body):
    forge.spoil("GET", "/issues", status, body=body, **headers)
    with pytest.raises(UpstreamError, match="asks to wait"):
        client(forge).get("/issues")


@pytest.mark.parametrize(
    ("status", "words"), [(401, "refuses the token"), (403, "refuses the token"), (404, "knows no")]
)
def test_a_token_or_repository_that_does_not_fit_is_a_fault_of_configuration(forge, status, words):
    forge.spoil("POST", "/issues", status, body=b'{"message": "Resource not accessible by integration"}')
    with pytest.raises(UsageError, match=words) as trouble:
        client(forge).send("POST", "/issues", {})
    assert TOKEN not in str(trouble.value)


def test_a_page_of_html_with_status_200_is_no_answer(forge):
    forge.spoil("GET", "/issues", 200, kind="text/html", body=b"<html>log in</html>")
    with pytest.raises(UpstreamError, match="instead of JSON"):
        client(forge).get("/issues")


def test_json_that_is_cut_off_is_no_answer(forge):
    forge.spoil("GET", "/issues", 200, body=b'[{"number": ')
    with pytest.raises(UpstreamError, match="instead of JSON"):
        client(forge).get("/issues")


def test_a_renamed_repository_is_followed_with_method_and_token(forge):
    forge.spoil("POST", "/repos/old/name/issues", 307, Location=f"/repos/{REPOSITORY}/issues")
    made = Forge(api=forge.url, repository="old/name", token=TOKEN).send(
        "POST", "/issues", {"title": "x", "labels": []}
    )
    assert made["title"] == "x"


def test_a_redirect_to_another_host_does_not_get_the_token(forge):
    forge.spoil("GET", "/issues", 302, Location="http://127.0.0.1:1/login")
    with pytest.raises(UpstreamError, match="where the token is not sent"):
        client(forge).get("/issues")


def test_redirects_without_end_are_given_up(forge):
    for _ in range(9):
        forge.spoil("GET", "/issues", 302, Location="/issues")
    with pytest.raises(UpstreamError, match="without end"):
        client(forge).get("/issues")


def test_nobody_there_is_unknown(forge):
    with pytest.raises(UpstreamError, match="could not be asked: ConnectionError"):
        Forge(api="http://127.0.0.1:1", repository=REPOSITORY, token=TOKEN).get("/issues")


def test_a_list_that_is_none_is_unknown(watch, up, forge):
    up.idle()
    forge.spoil("GET", "/issues", 200, body=b'{"a": 1}')
    result = watch()
    assert result.exit_code == 4
    assert "no list of issues" in result.error


def test_token_and_repository_come_from_the_environment_or_the_remote():
    found = forge_of({"GH_TOKEN": TOKEN}, "git@github.com:me/images.git")
    assert (found.api, found.repository) == ("https://api.github.com", "me/images")
    assert TOKEN not in repr(found)
    with pytest.raises(UsageError, match="no token"):
        forge_of({}, "https://github.com/me/images")
    with pytest.raises(UsageError, match="which repository"):
        forge_of({"GITHUB_TOKEN": "x"}, "https://example.org/me/images")
