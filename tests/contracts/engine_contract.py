"""What every engine has to pass. A further engine brings a harness and a class derived from `EngineContract`."""

import contextlib
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC
from functools import partial

import pytest

from engines.base import (
    CommandNotFound,
    CreateFailed,
    DigestChanged,
    Engine,
    EngineDown,
    EngineError,
    Exited,
    ImageNotFound,
    LaunchSpec,
    Limits,
    Missing,
    Mount,
    NotSupported,
    Running,
    run_name,
)
from tests.contracts.engine_acts import (
    COPIES,
    ENDS_WELL_ON_TERM,
    IGNORES_TERM,
    KILLS_ITSELF,
    LONG,
    NEEDS_MEMORY,
    NO_SUCH_PROGRAM,
    TELLS_ENVIRONMENT,
    USES_ITS_HOME,
    WAITS,
    WRITES_MUCH,
    Heard,
    a_spec,
    ended,
    exits,
    launched,
    output_of,
    said,
    shell,
    wait_for,
)
from tests.contracts.harnesses import Harness
from tests.services.clusters import machine, the_last_of

Launch = Callable[..., LaunchSpec]


class EngineContract:
    """Derive, and give a fixture ``harness``."""

    @pytest.fixture
    def engine(self, harness: Harness) -> Engine:
        return harness.engine()

    @pytest.fixture
    def run(self, harness: Harness, engine: Engine) -> Launch:
        return partial(launched, harness, engine)

    # ------------------------------------------------------------ being there

    def test_an_image_that_is_here_need_not_be_fetched(self, harness, engine):
        told: list[str] = []
        assert engine.ensure_image(harness.image, told.append) == engine.image_digest(harness.image)
        assert told == []
        with pytest.raises(ImageNotFound, match="no-such-image"):
            engine.ensure_image(harness.no_image, told.append)

    def test_an_image_other_than_the_approved_one_is_not_started(self, harness, engine):
        spec = a_spec(harness, exits(0), digest="sha256:" + "0" * 64)
        with pytest.raises(DigestChanged, match="sha256:000") as raised:
            engine.launch(spec)
        assert raised.value.reason == "DIGEST_CHANGED"
        assert engine.probe(spec.name) == Missing()
        engine.launch(replace(spec, digest=engine.image_digest(harness.image)))
        assert ended(engine, spec.name).code == 0

    def test_it_says_what_runs_cannot_reach(self, harness, engine):
        found = engine.isolation()
        whole = {"tasks", "outside"} if "network" in harness.capabilities else set()
        promised = getattr(
            harness, "isolates", whole
        )  # the host's packet filter may be ours to use or not
        assert promised <= {name for name in ("tasks", "host", "outside") if getattr(found, name)}
        assert found.outside is ("outside" in promised)
        assert bool(found.gaps) is not (found.tasks and found.host and found.outside)

    @pytest.mark.parametrize(
        ("capability", "asked"),
        [
            ("capabilities", {"capabilities": ("NET_BIND_SERVICE",)}),
            ("fractional_cpu", {"limits": Limits(cpu=0.5)}),
        ],
    )
    def test_what_only_some_engines_can_is_granted_or_refused(
        self, harness, engine, capability, asked
    ):
        spec = a_spec(harness, exits(0), **asked)
        if capability in harness.capabilities:
            engine.launch(spec)
            assert ended(engine, spec.name).code == 0
            return
        with pytest.raises(NotSupported) as raised:
            engine.launch(spec)
        assert raised.value.reason == "NOT_SUPPORTED"
        assert engine.probe(spec.name) == Missing()

    def test_an_engine_that_is_down_says_so(self, harness):
        spec = a_spec(harness, WAITS)
        with harness.down() as engine:
            with pytest.raises(EngineError):
                engine.launch(spec)
            calls: list[Callable[[], object]] = [engine.check]
            if harness.daemon:
                calls += [
                    lambda: engine.launch(spec),
                    lambda: engine.image_digest(harness.image),
                    lambda: engine.probe(spec.name),
                    lambda: engine.stop(spec.name, 1),
                    lambda: engine.logs(spec.name),
                    lambda: engine.remove(spec.name),
                    engine.list,
                ]
            for call in calls:
                with pytest.raises(EngineDown) as raised:
                    call()
                assert raised.value.reason == "ENGINE_DOWN"

    # ------------------------------------------------------------ launching

    def test_a_run_ends_with_its_code(self, engine, run):
        for act, code, signal in (
            (exits(0), 0, None),
            (exits(255), 255, None),
            (KILLS_ITSELF, 137, 9),
        ):
            exit_ = ended(engine, run(act).name)
            assert exit_.code == code
            assert exit_.signal == signal
            assert exit_.oom_killed is False

    def test_launching_twice_is_launching_once_and_times_are_in_order(self, engine, run):
        spec = run(WAITS)
        running = engine.probe(spec.name)
        engine.launch(spec)
        assert isinstance(running, Running)
        assert engine.probe(spec.name) == running
        assert [found.name for found in engine.list()] == [spec.name]
        engine.stop(spec.name, 10)
        exit_ = ended(engine, spec.name)
        assert running.started_at is not None
        assert exit_.started_at == running.started_at
        assert exit_.finished_at is not None
        assert exit_.finished_at.tzinfo is UTC
        assert exit_.started_at <= exit_.finished_at

    def test_ended_runs_are_not_restarted_and_their_logs_are_saved_first(
        self, harness, engine, run, tmp_path
    ):
        spec, target = run(exits(1)), tmp_path / "deep" / "er"
        exit_ = ended(engine, spec.name)
        engine.launch(spec)
        assert engine.probe(spec.name) == exit_
        engine.save_logs(spec.name, target)
        engine.remove(spec.name)
        engine.save_logs(spec.name, target)  # repeated after a crash: what was saved is not lost
        texts = {p.name: p.read_bytes() for p in target.iterdir()}
        assert texts.pop("stdout.log") in harness.logged(b"out\n", b"err\n")
        assert texts == {"stderr.log": b"err\n" if harness.streams else b""}

    def test_launching_from_many_threads_is_launching_once(self, harness):
        engines = [harness.engine(), harness.engine()]
        spec = a_spec(harness, WAITS)
        together = threading.Barrier(8)
        failures: list[Exception] = []

        def launch(engine: Engine) -> None:
            together.wait(LONG)
            try:
                engine.launch(spec)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=launch, args=(engines[n % 2],)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert [str(failure) for failure in failures] == []
        assert [found.name for found in engines[0].list()] == [spec.name]
        said(engines[0], spec.name, b"ready")
        assert engines[0].logs(spec.name).stdout == b"ready\n"

    def test_a_name_of_another_installation_is_not_taken_over(self, harness):
        spec = a_spec(harness, WAITS)
        harness.engine().launch(spec)
        other = harness.engine(installation=harness.another)
        with pytest.raises(CreateFailed, match="another installation"):
            other.launch(
                replace(spec, labels={**spec.labels, "bfia.installation": harness.another})
            )
        assert other.probe(spec.name) == Missing()
        other.stop(spec.name, 0)
        other.remove(spec.name)
        assert isinstance(harness.engine().probe(spec.name), Running)

    def test_a_missing_program_is_named_and_leaves_nothing(self, harness, engine):
        spec = a_spec(harness, NO_SUCH_PROGRAM)
        for _ in range(2):
            with pytest.raises(CommandNotFound, match="/no/such/program") as raised:
                engine.launch(spec)
            assert raised.value.reason == "COMMAND_NOT_FOUND"
        assert engine.probe(spec.name) == Missing()
        assert list(engine.list()) == []

    # ------------------------------------------------------------ environment

    def test_the_environment_arrives_exactly(self, harness, engine):
        environment = {
            "system.storage": "file:///bfia/storage",
            "config.node_id.host.0": "JG0100001100000010",
            "runtime.component.parameter.grid": json.dumps({"a": [1, {"b": None}], "c": "d=e"}),
            "runtime.component.parameter.empty": "",
            "runtime.component.parameter.lines": "one\ntwo\r\n\tthree ",
            "runtime.component.parameter.text": "联邦学习 'quoted' \"twice\" $HOME `id` \\",
            "plain": "x" * 100_000,
        }
        output = output_of(harness, engine, TELLS_ENVIRONMENT, environment=environment)
        text = bytes.fromhex(output.decode()).decode()  # no line of it is changed on the way
        told = dict(entry.split("=", 1) for entry in text.split("\0") if entry)
        assert {name: told.get(name) for name in environment} == environment
        assert set(told) - set(environment) <= harness.adds

    def test_home_temporary_and_working_folders_can_be_written(self, harness, engine):
        """As torch, matplotlib and numba do at import; shared memory is as large as the run's memory."""
        limits = Limits(memory=300 * 1024 * 1024)
        assert output_of(harness, engine, USES_ITS_HOME, limits=limits) == b"bfia\n"

    def test_what_cannot_be_launched_is_named(self, harness, engine):
        large = {
            "config.big": "x" * 131_072,
            "nul": "a\0b",
            "a=b": "c",
            "": "x",
            "half": "\ud800",
        }
        for name, value in large.items():
            spec = a_spec(harness, WAITS, environment={"fine": "1", name: value})
            with pytest.raises(CreateFailed, match="environment") as raised:
                engine.launch(spec)
            assert (name or "''") in str(raised.value)
            assert "fine" not in str(raised.value)
            assert engine.probe(spec.name) == Missing()
        for limits in (Limits(cpu=0), Limits(cpu=float("nan")), Limits(memory=-1), Limits(pids=0)):
            with pytest.raises(CreateFailed, match="limits"):
                engine.launch(a_spec(harness, WAITS, limits=limits))
        for name in ("../escape", "", ".", "a/b", "a\0b"):
            assert engine.probe(name) == Missing()
            with pytest.raises(CreateFailed, match="name"):
                engine.launch(a_spec(harness, WAITS, name=name))

    # ------------------------------------------------------------ looking and stopping

    def test_what_was_never_started_is_missing_and_harmless(self, engine, tmp_path):
        name = run_name("alpha", "none", "none", "guest", 0, 1)
        assert engine.probe(name) == Missing()
        engine.stop(name, 1)
        engine.remove(name)
        assert engine.logs(name).stdout == b""
        (tmp_path / "stdout.log").write_bytes(b"kept")
        engine.save_logs(name, tmp_path)
        assert (tmp_path / "stdout.log").read_bytes() == b"kept"

    @pytest.mark.parametrize(
        ("act", "grace", "code", "number"),
        [(ENDS_WELL_ON_TERM, LONG, 5, None), (WAITS, LONG, 143, 15), (IGNORES_TERM, 0.3, 137, 9)],
        ids=["exits in its own way", "by the signal", "is killed after the grace"],
    )
    def test_a_run_is_stopped(self, engine, run, act, grace, code, number):
        spec = run(act)
        said(engine, spec.name, b"ready")
        for _ in range(2):  # the second time it has exited, and that stays as it is
            engine.stop(spec.name, grace)
            exit_ = engine.probe(spec.name)
            assert isinstance(exit_, Exited)
            assert exit_.code == code
            assert exit_.signal == number

    # ------------------------------------------------------------ logs

    def test_the_end_of_a_log_can_be_read_alone(self, engine, run):
        spec = run(WRITES_MUCH)
        ended(engine, spec.name)
        assert engine.logs(spec.name, tail=7).stdout == b"the end"
        assert engine.logs(spec.name, tail=0).stdout == b""
        assert len(engine.logs(spec.name, tail=1_000_000).stdout) == 70_007
        assert len(engine.logs(spec.name).stdout) == 70_007

    # ------------------------------------------------------------ forgetting and listing

    def test_removing_ends_what_runs(self, harness, engine, run):
        spec = run(IGNORES_TERM)
        engine.remove(spec.name)
        assert engine.probe(spec.name) == Missing()
        engine.launch(replace(spec, command=harness.command(exits(4))))
        assert ended(engine, spec.name).code == 4

    def test_the_list_is_of_this_node_and_installation(self, harness):
        alpha, beta = harness.engine("alpha"), harness.engine("beta")
        other = harness.engine("alpha", harness.another)
        one, two = a_spec(harness, WAITS), a_spec(harness, exits(2), node="beta")
        three = a_spec(harness, WAITS)
        three = replace(three, labels={**three.labels, "bfia.installation": harness.another})
        for engine, spec in ((alpha, one), (beta, two), (other, three)):
            engine.launch(spec)
        ended(beta, two.name)
        for engine, spec in ((alpha, one), (beta, two), (other, three)):
            (found,) = engine.list()
            assert found.name == spec.name
            assert {**found.labels, **spec.labels} == found.labels
            assert found.probe == engine.probe(spec.name)

    # ------------------------------------------------------------ watching

    def test_a_failing_subscriber_gets_the_next_exit_and_a_closed_one_none(self, engine, run):
        heard, gone = Heard(), Heard()

        def fails(name: str) -> None:
            heard(name)
            raise RuntimeError("the subscriber is broken")

        engine.watch(gone).close()
        engine.watch(fails)
        for _ in range(2):
            heard.of(run(exits(0)).name)
        assert gone._names.empty()

    # ------------------------------------------------------------ starting anew

    def test_a_new_object_takes_up_the_runs_of_the_old(self, harness, engine, run):
        goes_on, over = run(WAITS), run(exits(3))
        said(engine, goes_on.name, b"ready")
        exit_ = ended(engine, over.name)
        engine.close()
        heard, anew = Heard(), harness.engine()
        anew.watch(heard)
        heard.of(over.name)  # without a watch on it
        assert anew.probe(over.name) == exit_
        assert anew.logs(over.name).stdout in harness.logged(b"out\n", b"err\n")
        assert isinstance(anew.probe(goes_on.name), Running)
        anew.launch(goes_on)
        assert anew.logs(goes_on.name).stdout == b"ready\n"
        anew.stop(goes_on.name, LONG)
        assert ended(anew, goes_on.name).code == 143
        heard.of(goes_on.name)

    # ------------------------------------------------------------ what only some engines can

    def test_mounts_are_seen_as_asked(self, harness, engine, tmp_path):
        source, target = tmp_path / "in", tmp_path / "out"
        source.mkdir(mode=0o755)
        target.mkdir()
        target.chmod(0o777)
        (source / "text").write_text("联邦\n", encoding="utf-8")
        mounts = (Mount(source, "/in"), Mount(target, "/out", read_only=False))
        spec = a_spec(harness, COPIES, mounts=mounts)
        if "mounts" not in harness.capabilities:
            with pytest.raises(NotSupported):
                engine.launch(spec)
            return
        engine.launch(spec)
        assert ended(engine, spec.name).code == 0, engine.logs(spec.name)
        assert (target / "text").read_text(encoding="utf-8") == "联邦\n"
        assert sorted(p.name for p in source.iterdir()) == ["text"]

    def test_a_run_does_not_get_more_memory_than_granted(self, harness, engine):
        spec = launched(harness, engine, NEEDS_MEMORY, limits=Limits(memory=100 * 1024 * 1024))
        exit_ = ended(engine, spec.name)
        assert exit_.code != 0
        assert exit_.oom_killed is ("oom_flag" in harness.capabilities)


class ClusterContract(EngineContract):
    """For engines of several machines, one of which is taken away."""

    def test_nothing_that_reads_like_a_template_is_filled_in(self, harness, engine):
        told = '$(HOME) $$(told) $told {{.Node.ID}} {{{ {{"x"}} {{- .Service.Name -}} }}'
        command = ("sh", "-c", 'printf \'%s\\n\' "$told" "$0"', told)
        output = output_of(harness, engine, WAITS, environment={"told": told}, command=command)
        assert output.decode().splitlines() == [told, told]

    def test_a_folder_of_its_own_can_be_written_and_no_other(self, harness):
        engine = harness.engine(read_only_root=True)
        text = "touch /x 2>/dev/null && exit 3; id -u; cd /bfia/log; echo a > x && echo b > /tmp/x && cat x /tmp/x"
        output = output_of(harness, engine, shell(text), private_folders=("/bfia/log",))
        assert output.splitlines()[-3:] == [b"65534", b"a", b"b"]

    def test_a_run_that_fits_nowhere_is_refused_in_the_schedulers_words(self, harness):
        engine = harness.engine(place_seconds=2.0)
        with pytest.raises(
            CreateFailed, match=rf"no machine of the \w+ takes it: {harness.no_room}"
        ):
            engine.launch(a_spec(harness, exits(0), reserved=Limits(memory=60 << 30)))
        assert engine.list() == []

    def test_a_run_on_a_machine_that_is_gone_is_lost_and_nothing_runs_twice(self, harness):
        """The last machine loses its link: its run is missing, others go on; back again, it ends what it had."""
        with the_last_of(harness.cluster), contextlib.closing(type(harness)(harness.last)) as last:
            near, far = harness.engine(), last.engine()
            stays, lost, never = a_spec(harness, WAITS), a_spec(last, WAITS), a_spec(last, WAITS)
            near.launch(stays)
            far.launch(lost)
            heard = Heard()
            far.watch(heard)
            try:
                machine(harness.cluster, "cut")
                with pytest.raises(CreateFailed, match=harness.gone):
                    last.engine(place_seconds=2.0).launch(never)
                heard.of(lost.name)
                assert far.probe(lost.name) == Missing()
                assert isinstance(near.probe(stays.name), Running)
                assert len(harness.pods(lost.name)) <= 1
                assert far.logs(lost.name).stdout == b""
                far.stop(lost.name, 1)
                far.remove(lost.name)
                assert far.list() == []
            finally:
                machine(harness.cluster, "mend")
            wait_for(
                lambda: not [*harness.pods(lost.name), *harness.pods(never.name)],
                "what it had is ended",
            )
            output_of(last, far, exits(0))
