"""The tests that every engine has to pass.

A further engine brings a harness and a class derived from `EngineContract`.
"""

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
    PRINTS_ENVIRONMENT,
    USES_ITS_HOME,
    WAITS,
    WRITES_MUCH,
    ExitListener,
    a_spec,
    exits,
    launch_run,
    output_of,
    shell,
    wait_for,
    wait_for_exit,
    wait_for_output,
)
from tests.contracts.harnesses import Harness
from tests.services.clusters import machine, the_last_of

# Launches a run with an act; returns its spec.
Launch = Callable[..., LaunchSpec]

MIB = 1024**2

# Limits that no run can have.
BAD_LIMITS = {
    "no CPU": Limits(cpu=0),
    "CPU not a number": Limits(cpu=float("nan")),
    "negative memory": Limits(memory=-1),
    "no process": Limits(pids=0),
}


def names_of(engine: Engine) -> list[str]:
    """Return the names of the engine's runs."""
    return [run.name for run in engine.list()]


class EngineContract:
    """The contract of every engine: derive a class and give it a fixture ``harness``."""

    @pytest.fixture
    def engine(self, harness: Harness) -> Engine:
        return harness.engine()

    @pytest.fixture
    def run(
        self,
        harness: Harness,
        engine: Engine,
    ) -> Launch:
        """Launch a run at the engine of the fixture ``engine``."""
        return partial(launch_run, harness, engine)

    # ------------------------------------------------------------ images and state

    def test_a_local_image_is_not_fetched(self, harness, engine):
        progress: list[str] = []

        digest = engine.ensure_image(harness.image, progress.append)

        assert digest == engine.image_digest(harness.image)
        assert progress == []
        with pytest.raises(ImageNotFound, match="no-such-image"):
            engine.ensure_image(harness.no_image, progress.append)

    def test_an_image_other_than_the_approved_one_is_not_started(self, harness, engine):
        spec = a_spec(harness, exits(0), digest="sha256:" + "0" * 64)

        with pytest.raises(DigestChanged, match="sha256:000") as refusal:
            engine.launch(spec)

        assert refusal.value.reason == "DIGEST_CHANGED"
        assert engine.probe(spec.name) == Missing()
        approved = replace(
            spec,
            digest=engine.image_digest(harness.image),
        )
        engine.launch(approved)
        assert wait_for_exit(engine, spec.name).code == 0

    def test_it_reports_the_isolation_of_runs(self, harness, engine):
        has_network = "network" in harness.capabilities
        full_isolation = {"tasks", "outside"} if has_network else set()
        # A harness lists its own: only root may use the host's packet filter.
        promised = getattr(harness, "isolates", full_isolation)

        isolation = engine.isolation()

        holds = {name for name in ("tasks", "host", "outside") if getattr(isolation, name)}
        assert promised <= holds
        assert isolation.outside is ("outside" in promised)
        is_complete = isolation.tasks and isolation.host and isolation.outside
        assert bool(isolation.gaps) is not is_complete

    @pytest.mark.parametrize(
        ("capability", "fields"),
        [
            ("capabilities", {"capabilities": ("NET_BIND_SERVICE",)}),
            ("fractional_cpu", {"limits": Limits(cpu=0.5)}),
        ],
    )
    def test_a_feature_of_some_engines_is_granted_or_refused(
        self, harness, engine, capability, fields
    ):
        spec = a_spec(harness, exits(0), **fields)
        if capability in harness.capabilities:
            engine.launch(spec)
            assert wait_for_exit(engine, spec.name).code == 0
            return

        with pytest.raises(NotSupported) as refusal:
            engine.launch(spec)

        assert refusal.value.reason == "NOT_SUPPORTED"
        assert engine.probe(spec.name) == Missing()

    def test_an_engine_that_is_down_says_so(self, harness):
        spec = a_spec(harness, WAITS)
        with harness.down() as engine:
            with pytest.raises(EngineError):
                engine.launch(spec)
            calls: list[Callable[[], object]] = [engine.check]
            if harness.daemon:
                calls += [
                    partial(engine.launch, spec),
                    partial(engine.image_digest, harness.image),
                    partial(engine.probe, spec.name),
                    partial(engine.stop, spec.name, 1),
                    partial(engine.logs, spec.name),
                    partial(engine.remove, spec.name),
                    engine.list,
                ]
            for call in calls:
                with pytest.raises(EngineDown) as error:
                    call()
                assert error.value.reason == "ENGINE_DOWN"

    # ------------------------------------------------------------ launching

    def test_a_run_ends_with_its_code(self, engine, run):
        for act, code, signal in (
            (exits(0), 0, None),
            (exits(255), 255, None),
            (KILLS_ITSELF, 137, 9),
        ):
            exit_ = wait_for_exit(engine, run(act).name)

            assert exit_.code == code
            assert exit_.signal == signal
            assert exit_.oom_killed is False

    def test_launching_twice_is_launching_once_and_times_are_in_order(self, engine, run):
        spec = run(WAITS)
        running = engine.probe(spec.name)

        engine.launch(spec)

        assert isinstance(running, Running)
        assert engine.probe(spec.name) == running
        assert names_of(engine) == [spec.name]
        engine.stop(spec.name, 10)
        exit_ = wait_for_exit(engine, spec.name)
        assert running.started_at is not None
        assert exit_.started_at == running.started_at
        assert exit_.finished_at is not None
        assert exit_.finished_at.tzinfo is UTC
        assert exit_.started_at <= exit_.finished_at

    def test_an_ended_run_is_not_restarted(self, engine, run):
        spec = run(exits(1))
        exit_ = wait_for_exit(engine, spec.name)

        engine.launch(spec)

        assert engine.probe(spec.name) == exit_

    def test_saved_logs_outlive_the_run_and_a_second_save(self, harness, engine, run, tmp_path):
        folder = tmp_path / "deep" / "er"
        spec = run(exits(1))
        wait_for_exit(engine, spec.name)

        engine.save_logs(spec.name, folder)
        engine.remove(spec.name)
        engine.save_logs(spec.name, folder)  # as a gateway does that crashed after the removal

        texts = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert texts.pop("stdout.log") in harness.logged(b"out\n", b"err\n")
        assert texts == {"stderr.log": b"err\n" if harness.streams else b""}

    def test_launching_from_many_threads_is_launching_once(self, harness):
        engines = [harness.engine(), harness.engine()]
        spec = a_spec(harness, WAITS)
        barrier = threading.Barrier(8)
        failures: list[Exception] = []

        def launch(engine: Engine) -> None:
            barrier.wait(LONG)
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
        assert names_of(engines[0]) == [spec.name]
        wait_for_output(engines[0], spec.name, b"ready")
        assert engines[0].logs(spec.name).stdout == b"ready\n"

    def test_a_name_of_another_installation_is_not_taken_over(self, harness):
        spec = a_spec(harness, WAITS)
        harness.engine().launch(spec)
        stranger = harness.engine(installation=harness.another)
        relabelled = {**spec.labels, "bfia.installation": harness.another}

        with pytest.raises(CreateFailed, match="another installation"):
            stranger.launch(replace(spec, labels=relabelled))

        assert stranger.probe(spec.name) == Missing()
        stranger.stop(spec.name, 0)
        stranger.remove(spec.name)
        assert isinstance(
            harness.engine().probe(spec.name),
            Running,
        )

    def test_a_missing_program_is_named_and_leaves_nothing(self, harness, engine):
        spec = a_spec(harness, NO_SUCH_PROGRAM)

        for _ in range(2):
            with pytest.raises(CommandNotFound, match="/no/such/program") as refusal:
                engine.launch(spec)
            assert refusal.value.reason == "COMMAND_NOT_FOUND"

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

        output = output_of(
            harness,
            engine,
            PRINTS_ENVIRONMENT,
            environment=environment,
        )

        text = bytes.fromhex(output.decode()).decode()  # hexadecimal keeps line ends as they are
        variables = dict(entry.split("=", 1) for entry in text.split("\0") if entry)
        assert {name: variables.get(name) for name in environment} == environment
        assert set(variables) - set(environment) <= harness.adds

    def test_home_temporary_and_working_folders_can_be_written(self, harness, engine):
        """torch, matplotlib and numba write there at import.

        Shared memory may be as large as the run's memory.
        """
        limits = Limits(memory=300 * MIB)
        assert output_of(harness, engine, USES_ITS_HOME, limits=limits) == b"bfia\n"

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("config.big", "x" * 131_072),
            ("nul", "a\0b"),
            ("a=b", "c"),
            ("", "x"),
            ("half", "\ud800"),
        ],
        ids=["too long", "with NUL", "name with =", "no name", "half a character"],
    )
    def test_a_variable_that_cannot_be_passed_is_named(self, harness, engine, name, value):
        spec = a_spec(
            harness,
            WAITS,
            environment={
                "fine": "1",
                name: value,
            },
        )

        with pytest.raises(CreateFailed, match="environment") as refusal:
            engine.launch(spec)

        assert (name or "''") in str(refusal.value)
        assert "fine" not in str(refusal.value)
        assert engine.probe(spec.name) == Missing()

    @pytest.mark.parametrize(
        "limits",
        BAD_LIMITS.values(),
        ids=BAD_LIMITS.keys(),
    )
    def test_limits_that_no_run_can_have_are_refused(self, harness, engine, limits):
        with pytest.raises(CreateFailed, match="limits"):
            engine.launch(a_spec(harness, WAITS, limits=limits))

    @pytest.mark.parametrize(
        "name",
        ["../escape", "", ".", "a/b", "a\0b"],
    )
    def test_a_name_that_is_no_runs_name_is_refused(self, harness, engine, name):
        assert engine.probe(name) == Missing()
        with pytest.raises(CreateFailed, match="name"):
            engine.launch(a_spec(harness, WAITS, name=name))

    # ------------------------------------------------------------ probing and stopping

    def test_a_run_that_was_never_started_is_missing_and_harmless(self, engine, tmp_path):
        name = run_name(
            "alpha",
            "none",
            "none",
            "guest",
            0,
            1,
        )
        assert engine.probe(name) == Missing()
        engine.stop(name, 1)
        engine.remove(name)
        assert engine.logs(name).stdout == b""

        log = tmp_path / "stdout.log"
        log.write_bytes(b"kept")
        engine.save_logs(name, tmp_path)

        assert log.read_bytes() == b"kept"

    @pytest.mark.parametrize(
        ("act", "grace", "code", "number"),
        [
            (ENDS_WELL_ON_TERM, LONG, 5, None),
            (WAITS, LONG, 143, 15),
            (IGNORES_TERM, 0.3, 137, 9),
        ],
        ids=["exits in its own way", "by the signal", "is killed after the grace"],
    )
    def test_a_run_is_stopped(
        self,
        engine,
        run,
        act,
        grace,
        code,
        number,
    ):
        spec = run(act)
        wait_for_output(engine, spec.name, b"ready")

        for _ in range(2):  # the second stop finds it ended and changes nothing
            engine.stop(spec.name, grace)

            exit_ = engine.probe(spec.name)
            assert isinstance(exit_, Exited)
            assert exit_.code == code
            assert exit_.signal == number

    # ------------------------------------------------------------ logs

    def test_the_end_of_a_log_can_be_read_alone(self, engine, run):
        spec = run(WRITES_MUCH)
        wait_for_exit(engine, spec.name)

        assert engine.logs(spec.name, tail=7).stdout == b"the end"
        assert engine.logs(spec.name, tail=0).stdout == b""
        assert len(engine.logs(spec.name, tail=1_000_000).stdout) == 70_007
        assert len(engine.logs(spec.name).stdout) == 70_007

    # ------------------------------------------------------------ removing and listing

    def test_removing_ends_a_run_and_frees_its_name(self, harness, engine, run):
        spec = run(IGNORES_TERM)

        engine.remove(spec.name)

        assert engine.probe(spec.name) == Missing()
        engine.launch(replace(spec, command=harness.command(exits(4))))
        assert wait_for_exit(engine, spec.name).code == 4

    def test_the_list_is_of_this_node_and_installation(self, harness):
        alpha = harness.engine("alpha")
        beta = harness.engine("beta")
        stranger = harness.engine("alpha", harness.another)
        of_alpha = a_spec(harness, WAITS)
        of_beta = a_spec(
            harness,
            exits(2),
            node="beta",
        )
        of_stranger = a_spec(harness, WAITS)
        relabelled = {**of_stranger.labels, "bfia.installation": harness.another}
        of_stranger = replace(of_stranger, labels=relabelled)
        launches = [
            (alpha, of_alpha),
            (beta, of_beta),
            (stranger, of_stranger),
        ]

        for engine, spec in launches:
            engine.launch(spec)
        wait_for_exit(beta, of_beta.name)

        for engine, spec in launches:
            (run,) = engine.list()
            assert run.name == spec.name
            assert {**run.labels, **spec.labels} == run.labels
            assert run.probe == engine.probe(spec.name)

    # ------------------------------------------------------------ watching

    def test_a_failing_subscriber_gets_the_next_exit_and_a_closed_one_none(self, engine, run):
        exits_of_failing = ExitListener()
        exits_after_close = ExitListener()

        def fail(name: str) -> None:
            exits_of_failing(name)
            raise RuntimeError("the subscriber is broken")

        engine.watch(exits_after_close).close()
        engine.watch(fail)
        for _ in range(2):
            exits_of_failing.wait_for(run(exits(0)).name)

        assert exits_after_close.is_empty

    # ------------------------------------------------------------ restarting

    def test_a_new_object_takes_up_the_runs_of_the_old(self, harness, engine, run):
        running = run(WAITS)
        over = run(exits(3))
        wait_for_output(engine, running.name, b"ready")
        exit_ = wait_for_exit(engine, over.name)
        engine.close()

        reported = ExitListener()
        successor = harness.engine()
        successor.watch(reported)

        reported.wait_for(over.name)  # although it ended without a watch
        assert successor.probe(over.name) == exit_
        assert successor.logs(over.name).stdout in harness.logged(b"out\n", b"err\n")
        assert isinstance(successor.probe(running.name), Running)
        successor.launch(running)
        assert successor.logs(running.name).stdout == b"ready\n"
        successor.stop(running.name, LONG)
        assert wait_for_exit(successor, running.name).code == 143
        reported.wait_for(running.name)

    # ------------------------------------------------------------ features of some engines

    def test_mounts_are_read_only_or_writable(self, harness, engine, tmp_path):
        source = tmp_path / "in"
        source.mkdir(mode=0o755)
        (source / "text").write_text("联邦\n", encoding="utf-8")
        target = tmp_path / "out"
        target.mkdir()
        target.chmod(0o777)
        mounts = (
            Mount(source, "/in"),
            Mount(
                target,
                "/out",
                read_only=False,
            ),
        )
        spec = a_spec(
            harness,
            COPIES,
            mounts=mounts,
        )
        if "mounts" not in harness.capabilities:
            with pytest.raises(NotSupported):
                engine.launch(spec)
            return

        engine.launch(spec)

        assert wait_for_exit(engine, spec.name).code == 0, engine.logs(spec.name)
        assert (target / "text").read_text(encoding="utf-8") == "联邦\n"
        assert sorted(path.name for path in source.iterdir()) == ["text"]

    def test_a_run_does_not_get_more_memory_than_granted(self, harness, engine):
        has_flag = "oom_flag" in harness.capabilities
        outcomes: list[Exited] = []
        # On a machine under load, containerd may lose the kernel's message about one of them.
        for _ in range(3 if has_flag else 1):
            spec = launch_run(harness, engine, NEEDS_MEMORY, limits=Limits(memory=100 * MIB))
            outcomes.append(wait_for_exit(engine, spec.name))
            if outcomes[-1].oom_killed:
                break

        assert 0 not in {outcome.code for outcome in outcomes}
        assert outcomes[-1].oom_killed is has_flag


class ClusterContract(EngineContract):
    """The contract of engines of several machines; one test cuts the last machine off."""

    def test_template_syntax_is_passed_on_literally(self, harness, engine):
        text = '$(HOME) $$(told) $told {{.Node.ID}} {{{ {{"x"}} {{- .Service.Name -}} }}'
        command = ("sh", "-c", 'printf \'%s\\n\' "$told" "$0"', text)

        output = output_of(
            harness,
            engine,
            WAITS,
            environment={"told": text},
            command=command,
        )

        assert output.decode().splitlines() == [text, text]

    def test_private_folders_are_the_only_writable_ones(self, harness):
        engine = harness.engine(read_only_root=True)
        text = (
            "touch /x 2>/dev/null && exit 3; id -u; cd /bfia/log; "
            "echo a > x && echo b > /tmp/x && cat x /tmp/x"
        )

        output = output_of(
            harness,
            engine,
            shell(text),
            private_folders=("/bfia/log",),
        )

        assert output.splitlines()[-3:] == [b"65534", b"a", b"b"]

    def test_a_run_that_fits_nowhere_is_refused_in_the_schedulers_words(self, harness):
        engine = harness.engine(place_seconds=2.0)
        words = rf"no machine of the \w+ takes it: {harness.no_room}"

        with pytest.raises(CreateFailed, match=words):
            engine.launch(a_spec(harness, exits(0), reserved=Limits(memory=60 << 30)))

        assert engine.list() == []

    def test_a_run_on_a_machine_that_is_gone_is_lost_and_nothing_runs_twice(self, harness):
        """The last machine loses its link: its run is missing, and runs elsewhere go on.

        Once the link is back, the machine ends its runs.
        """
        with the_last_of(harness.cluster), contextlib.closing(type(harness)(harness.last)) as last:
            near = harness.engine()
            far = last.engine()
            near_run = a_spec(harness, WAITS)
            lost_run = a_spec(last, WAITS)
            refused_run = a_spec(last, WAITS)
            near.launch(near_run)
            far.launch(lost_run)
            reported = ExitListener()
            far.watch(reported)
            try:
                machine(harness.cluster, "cut")
                with pytest.raises(CreateFailed, match=harness.gone):
                    last.engine(place_seconds=2.0).launch(refused_run)
                reported.wait_for(lost_run.name)
                assert far.probe(lost_run.name) == Missing()
                assert isinstance(near.probe(near_run.name), Running)
                assert len(harness.pods(lost_run.name)) <= 1
                assert far.logs(lost_run.name).stdout == b""
                far.stop(lost_run.name, 1)
                far.remove(lost_run.name)
                assert far.list() == []
            finally:
                machine(harness.cluster, "mend")
            wait_for(
                lambda: not [*harness.pods(lost_run.name), *harness.pods(refused_run.name)],
                "the machine has ended its runs",
            )
            output_of(last, far, exits(0))
