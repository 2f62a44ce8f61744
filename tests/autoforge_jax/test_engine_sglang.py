"""The SGLang client against a scripted HTTP stand-in (not SGLang: tests/sglang has the real one)."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autoforge_jax.config import SGLangConfig, parse_config
from autoforge_jax.errors import ConfigError, EngineLostError, LedgerError, PolicyError, WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.rollout.engine_sglang import SGLangEngine
from autoforge_jax.rollout.policy import Policy
from autoforge_jax.rollout.sglang_local import LocalServer
from autoforge_jax.rollout.sglang_weights import PublishedWeights
from autoforge_jax.types import SampleRequest, SamplingParams
from tests.autoforge_jax.mock_learner import TINY
from tests.autoforge_jax.scripted_sglang import ScriptedServer, publish

STOP = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of versions 0 and 1."""
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def initial(folder: Path) -> PublishedWeights:
    """What servers are started with."""
    return publish(folder / "initial", seed=0, version=0)


@pytest.fixture(scope="module")
def weights(folder: Path) -> PublishedWeights:
    """What a run publishes."""
    return publish(folder / "v1", seed=1, version=1)


@pytest.fixture
def server(initial: PublishedWeights) -> Iterator[ScriptedServer]:
    """A stand-in."""
    server = ScriptedServer(initial.folder)
    yield server
    server.die()


Make = Callable[..., SGLangEngine]


@pytest.fixture
def make(server: ScriptedServer) -> Iterator[Make]:
    """Makes engines that are closed afterwards."""
    made: list[SGLangEngine] = []

    def make(
        *servers: ScriptedServer,
        model: Qwen3Config = TINY,
        max_length: int = 64,
        start: Callable[[str], None] | None = None,
        asleep: Path | None = None,
        **changes: Any,
    ) -> SGLangEngine:
        urls = tuple(one.url for one in servers or (server,))
        config = SGLangConfig(**{"urls": urls, "start_timeout_s": 5.0, "connect_timeout_s": 1.0, **changes})
        made.append(
            SGLangEngine(config, model, max_length=max_length, start_server=start, asleep_file=asleep)
        )
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def request(name: str = "s", ids: tuple[int, ...] = (1, 2, 4), **params: Any) -> SampleRequest:
    return SampleRequest(name, ids, SamplingParams(**{"stop_token_ids": (STOP,), **params}), seed=11)


# ------------------------------------------------------------------------------------------------ one turn
def test_ids_logprobs_stop_and_version(make: Make, server: ScriptedServer, weights: PublishedWeights) -> None:
    engine = make()
    assert isinstance(engine, Policy) and engine.version == -1
    report = engine.publish(weights)
    assert (report.servers, report.updated, engine.version) == (1, 1, 1)
    stop, length = engine.sample([request("a"), request("b", stop_token_ids=(), max_turn_tokens=2)])
    assert (stop.token_ids, stop.logprobs, stop.stop) == ((7, STOP), (-0.5, -0.75), "stop")
    assert (length.token_ids, length.stop, length.policy_version) == ((7, 7), "length", 1)
    assert len({body["rid"] for body in server.of("/generate")}) == 2


def test_every_option_that_shapes_the_distribution_is_sent(
    make: Make, server: ScriptedServer, weights: PublishedWeights
) -> None:
    engine = make()
    engine.publish(weights)
    engine.sample([request("a", temperature=0.5, top_k=4, max_turn_tokens=9)])
    engine.sample([request("b", temperature=0.0, top_p=0.5)])
    engine.sample([request("c", tuple([1] * 60))])
    sampled, greedy, full = (body["sampling_params"] for body in server.of("/generate"))
    assert sampled == {
        "max_new_tokens": 9, "temperature": 0.5, "top_p": 1.0, "top_k": 4, "min_p": 0.0, "n": 1,
        "frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_new_tokens": 0,
        "ignore_eos": False, "stop_token_ids": [STOP], "sampling_seed": 11,
    }  # fmt: skip
    assert (greedy["temperature"], greedy["top_p"], greedy["top_k"]) == (0.0, 1.0, -1)
    assert full["max_new_tokens"] == 4, "a turn ends where the context is full, as in the embedded engine"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (request("x", (1, 24)), "id 24 is outside the vocabulary of 24"),
        (request("x", (-1, 2)), "id -1 is outside the vocabulary"),
        (request("x", ()), "empty context"),
        (request("x", (1,) * 64), "leaves no room in max_length 64"),
        (request("x", max_turn_tokens=0), "max_turn_tokens 0"),
        (request("x", temperature=1e-7), "SGLang takes 0 .greedy. or at least"),
        (request("x", temperature=-1.0), "temperature -1"),
        (request("x", top_k=3, top_p=0.5), "top_k 3 together with top_p 0.5"),
        (request("fine"), "stands twice"),
    ],
)
def test_wrong_requests_are_refused_before_anything_is_sent(
    make: Make, server: ScriptedServer, weights: PublishedWeights, bad: SampleRequest, message: str
) -> None:
    engine = make()
    with pytest.raises(PolicyError, match="no weights yet"):
        engine.sample([request("fine")])
    engine.publish(weights)
    with pytest.raises(PolicyError, match=message):
        engine.sample([request("fine"), bad])
    assert server.of("/generate") == []


def test_contexts_only_grow(make: Make, weights: PublishedWeights) -> None:
    engine = make()
    engine.publish(weights)
    engine.sample([request("s", (1, 2))])
    engine.sample([request("s", (1, 2, 7, STOP, 5))])
    with pytest.raises(LedgerError, match="the context changed at position 2"):
        engine.sample([request("s", (1, 2, 8, STOP, 5, 6))])
    engine.release("s")
    assert engine.sample([request("s", (1, 2, 8))])[0].stop == "stop"
    assert engine.stats()["live_sessions"] == 1


def _meta(**changes: Any) -> Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]:
    return lambda _body, reply: {**reply, "meta_info": {**reply["meta_info"], **changes}}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (_meta(output_token_logprobs=None), "returned no log-probs; expected one for each of 2"),
        (_meta(output_token_logprobs=[[-0.5, 7, None]]), "1 and 2 of them"),
        (_meta(output_token_logprobs=[[-0.5, STOP, None], [-0.5, 7, None]]), "log-probs belong to ids"),
        (
            _meta(output_token_logprobs=[[None, 7, None], [-0.5, STOP, None]]),
            "no log-prob for sampled token 0",
        ),
        (_meta(prompt_tokens=2), "sent 3 ids, the server read 2"),
        (_meta(finish_reason={"type": "length"}), "ended after 2 of 61 tokens for lack of room"),
        (
            lambda _body, reply: {
                "output_ids": [7, 9],
                "meta_info": {**reply["meta_info"], "output_token_logprobs": [[-1, 7, None], [-1, 9, None]]},
            },
            "none of the stop tokens",
        ),
        (
            lambda _body, reply: {
                "output_ids": [24],
                "meta_info": {**reply["meta_info"], "output_token_logprobs": [[-1.0, 24, None]]},
            },
            "sampled id 24, the vocabulary has 24",
        ),
    ],
)
def test_answers_that_cannot_be_learned_from_stop_the_run(
    make: Make, server: ScriptedServer, weights: PublishedWeights, answer: Any, message: str
) -> None:
    engine = make()
    engine.publish(weights)
    server.answer = answer
    with pytest.raises(LedgerError, match=message):
        engine.sample([request()])


def test_what_is_no_sglang_is_said_so(make: Make, server: ScriptedServer, weights: PublishedWeights) -> None:
    engine = make()
    engine.publish(weights)
    server.answer = lambda _body, _reply: {"text": "hello"}
    output = engine.sample([request()])[0]
    assert output.stop == "abort" and "does not understand (output_ids: Field required" in output.reason
    server.model_info = {"weight_version": None}
    with pytest.raises(WeightsError, match="does not understand"):
        make().publish(weights)


# ------------------------------------------------------------------------------------------------ failures
def test_one_refused_request_does_not_cost_its_siblings(
    make: Make, server: ScriptedServer, weights: PublishedWeights
) -> None:
    engine = make()
    engine.publish(weights)
    server.answer = lambda body, reply: {"error": {"message": "no"}} if len(body["input_ids"]) == 5 else reply
    outputs = engine.sample([request("a"), request("b", (1,) * 5), request("c")])
    assert [output.stop for output in outputs] == ["stop", "abort", "stop"]
    assert "400" in outputs[1].reason and outputs[1].token_ids == ()
    assert len(server.of("/generate")) == 3, "a refusal is not tried again"


def test_a_deadline_aborts_and_is_not_tried_again(
    make: Make, server: ScriptedServer, weights: PublishedWeights
) -> None:
    engine = make(request_timeout_s=0.2)
    engine.publish(weights)
    server.hang.set()
    outputs = engine.sample([request("a"), request("b")])
    assert [output.stop for output in outputs] == ["abort", "abort"]
    assert "no answer in 0.2 s" in outputs[0].reason
    asked = [body["rid"] for body in server.of("/generate")]
    assert sorted(asked) == sorted(body["rid"] for body in server.of("/abort_request")) and len(asked) == 2
    server.hang.clear()
    assert engine.sample([request("a")])[0].stop == "stop"
    assert engine.stats()["timeouts"] == engine.stats()["confirmed_aborts"] == 2


def test_an_abort_by_the_server_is_a_value(
    make: Make, server: ScriptedServer, weights: PublishedWeights
) -> None:
    engine = make()
    engine.publish(weights)
    server.answer = _meta(finish_reason={"type": "abort", "message": "paused"})
    output = engine.sample([request()])[0]
    assert (output.stop, output.token_ids) == ("abort", ()) and "paused" in output.reason


def test_a_broken_connection_is_tried_again_once_its_first_attempt_is_aborted(
    make: Make, server: ScriptedServer, weights: PublishedWeights
) -> None:
    engine = make()
    engine.publish(weights)
    broken: list[str] = []

    def answer(body: dict[str, Any], reply: dict[str, Any]) -> dict[str, Any] | None:
        if len(broken) < 1:
            broken.append(body["rid"])
            return None
        return reply

    server.answer = answer
    outputs = engine.sample([request("a"), request("b")])
    assert [output.token_ids for output in outputs] == [(7, STOP)] * 2
    rids = [body["rid"] for body in server.of("/generate")]
    assert len(rids) == len(set(rids)) == 3
    assert [body["rid"] for body in server.of("/abort_request")] == broken
    assert engine.stats()["lost_connections"] == 1 and engine.stats()["requests"] == 2


def test_attempts_are_bounded(make: Make, server: ScriptedServer, weights: PublishedWeights) -> None:
    engine = make(attempts=2)
    engine.publish(weights)
    server.answer = lambda _body, _reply: None
    output = engine.sample([request()])[0]
    assert output.stop == "abort" and "given up after 2 attempts" in output.reason
    assert len(server.of("/generate")) == 2


def test_a_restarted_server_gets_the_weights_before_it_samples(
    make: Make, server: ScriptedServer, weights: PublishedWeights
) -> None:
    starts: list[str] = []

    def start(url: str) -> None:
        starts.append(url)
        server.hang.clear()
        server.start()

    engine = make(start=start)
    engine.publish(weights)
    server.hang.set()
    outputs: list[Any] = []
    worker = threading.Thread(target=lambda: outputs.extend(engine.sample([request("a"), request("b")])))
    worker.start()
    while len(server.of("/generate")) < 2:
        time.sleep(0.01)
    server.die()
    worker.join(20)
    assert [(output.token_ids, output.policy_version) for output in outputs] == [((7, STOP), 1)] * 2
    assert starts == [server.url] and server.version == weights.tag
    assert engine.stats()["updates"] == 2


def test_an_answer_from_other_weights_never_enters_the_data(
    make: Make, server: ScriptedServer, weights: PublishedWeights
) -> None:
    engine = make()
    engine.publish(weights)
    server.die()
    server.start()  # unnoticed: comes up with the weights that it was started with
    assert engine.sample([request()])[0].policy_version == 1
    assert engine.stats()["stale_answers"] == 1 and server.version == weights.tag

    def mixed(_body: dict[str, Any], reply: dict[str, Any]) -> dict[str, Any]:
        spans = [{"version": "v0-x", "start": 0, "end": 1}, {"version": weights.tag, "start": 1, "end": 2}]
        return _meta(weight_versions=spans)(_body, reply)

    server.answer = mixed
    output = engine.sample([request("other")])[0]
    assert output.stop == "abort" and "answered from weights ['v0-x'" in output.reason


def test_no_server_is_one_clear_error_and_no_failed_trajectory(
    make: Make, server: ScriptedServer, weights: PublishedWeights
) -> None:
    engine = make(start_timeout_s=0.3)
    server.die()
    with pytest.raises(EngineLostError, match=r"no SGLang server at http://127.*--model-path .*v1 --host"):
        engine.publish(weights)
    server.start()
    engine.publish(weights)
    server.die()
    with pytest.raises(EngineLostError):
        engine.sample([request("a"), request("b")])
    assert not issubclass(EngineLostError, PolicyError)  # or an episode would be blamed for it


# -------------------------------------------------------------------------------- several servers
def test_sessions_stick_to_their_server_and_move_when_it_dies(
    make: Make, server: ScriptedServer, initial: PublishedWeights, weights: PublishedWeights
) -> None:
    other = ScriptedServer(initial.folder)
    try:
        engine = make(server, other)
        assert engine.publish(weights).servers == 2
        names = [f"s{i}" for i in range(6)]
        engine.sample([request(name, (1, i + 4)) for i, name in enumerate(names)])
        engine.sample([request(name, (1, i + 4, 7, STOP, 5)) for i, name in enumerate(names)])

        def homes(one: ScriptedServer) -> list[int]:
            return sorted(body["input_ids"][1] for body in one.of("/generate"))

        assert len(homes(server)) == len(homes(other)) == 6
        assert homes(server)[::2] == homes(server)[1::2], "both turns of a session on one server"
        assert not set(homes(server)) & set(homes(other))
        other.die()
        outputs = engine.sample([request(n, (1, i + 4, 7, STOP, 5, 7, STOP, 5)) for i, n in enumerate(names)])
        assert {output.stop for output in outputs} == {"stop"}
        newer = dataclasses.replace(weights, tag="v2-x", version=2)
        assert engine.publish(newer).servers == 1, "the dead one is left out"
        other.start()
        assert engine.publish(dataclasses.replace(weights, tag="v3-x", version=3)).servers == 2
        assert other.version == server.version == "v3-x"
    finally:
        other.die()


# ------------------------------------------------------------------------------------------------ weights
def test_behind_a_router_turns_go_to_it_and_all_else_to_every_server(
    make: Make, server: ScriptedServer, initial: PublishedWeights, weights: PublishedWeights
) -> None:
    other, router = ScriptedServer(initial.folder), ScriptedServer(initial.folder)
    router.version = weights.tag  # of the server that it sent the request to
    engine = make(server, other, router=router.url, request_timeout_s=1)
    engine.publish(weights)
    assert server.version == other.version == weights.tag and not router.of("/update_weights_from_disk")
    outputs = engine.sample([request("a"), request("b")])
    assert [output.stop for output in outputs] == ["stop", "stop"]
    assert len(router.of("/generate")) == 2
    assert not server.of("/generate") and not other.of("/generate")

    # One came back with its first weights, and the router sends to it before anybody knows.
    other.version = "default"
    stale = iter([True])
    router.answer = lambda _body, reply: (
        {**reply, "meta_info": {**reply["meta_info"], "weight_version": "default"}}
        if next(stale, False)
        else reply
    )
    assert engine.sample([request("c")])[0].policy_version == weights.version
    assert engine.stats()["stale_answers"] == 1 and other.version == weights.tag

    # One is away: the others work, and an abort reaches whoever has the request.
    other.die()
    router.hang.set()
    assert engine.sample([request("d")])[0].stop == "abort"
    rid = router.of("/generate")[-1]["rid"]
    assert [body["rid"] for body in server.of("/abort_request")] == [rid] and not router.of("/abort_request")
    router.hang.clear()
    router.die()


def test_equal_weights_are_not_loaded_again(
    make: Make, server: ScriptedServer, weights: PublishedWeights
) -> None:
    engine = make()
    engine.publish(weights)
    assert engine.publish(weights).updated == 0
    assert make().publish(weights).updated == 0, "another process finds them there"
    bodies = server.of("/update_weights_from_disk")
    assert bodies == [{"model_path": str(weights.folder), "weight_version": weights.tag, "flush_cache": True}]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_type_that_a_server_keeps_is_found_out(
    make: Make, server: ScriptedServer, weights: PublishedWeights, dtype: str
) -> None:
    server.dtype = dtype
    assert make().publish(weights).compared == 10
    weights.tensors, kept = None, weights.tensors  # from the folder
    try:
        assert make().publish(dataclasses.replace(weights, tag="again")).compared == 10
    finally:
        weights.tensors = kept


def test_what_did_not_arrive_is_named(
    make: Make, server: ScriptedServer, folder: Path, weights: PublishedWeights
) -> None:
    server.checksums = lambda sums: {**sums, "model.norm.weight": "0" * 16}
    with pytest.raises(WeightsError, match=r'model\.norm\.weight did not arrive as sent.*verify = "version"'):
        make().publish(dataclasses.replace(weights, tag="t0"))
    assert make(verify="version").publish(dataclasses.replace(weights, tag="t1")).compared == 0
    server.checksums = lambda sums: {**sums, "lm_head.weight": "0" * 16}
    with pytest.raises(WeightsError, match=r"unknown \['lm_head.weight'\]; is it another model"):
        make().publish(dataclasses.replace(weights, tag="t3"))
    server.checksums = lambda sums: sums
    other = publish(folder / "v9", seed=9, version=9)
    mixed = dataclasses.replace(other, folder=weights.folder)  # the file is another's
    with pytest.raises(WeightsError, match=r"of 10 tensors arrived changed, first model\.embed_tokens"):
        make().publish(mixed)
    server.folder, server.version = weights.folder, other.tag  # a tag that lies is found out and mended
    assert make().publish(other).compared == 10 and server.folder == other.folder
    with pytest.raises(WeightsError, match=r"were not taken.*no such folder"):
        make().publish(dataclasses.replace(weights, tag="t2", folder=folder / "absent"))


def test_a_server_that_dies_of_the_weights_is_not_killed_for_ever(
    make: Make, server: ScriptedServer, weights: PublishedWeights
) -> None:
    server.refuses = "/update_weights_from_disk"
    with pytest.raises(WeightsError, match=r"died twice while it took the weights in .*v1"):
        make().publish(weights)
    assert len(server.of("/update_weights_from_disk")) == 2
    server.refuses = "/model_info"
    with pytest.raises(EngineLostError, match="no SGLang server at"):
        make(start_timeout_s=0.1).publish(weights)


@pytest.mark.parametrize(
    ("info", "model", "message"),
    [
        ({"max_req_input_len": 40}, {}, "takes 40 tokens, rollout.max_trajectory_tokens is 64"),
        ({"speculative_algorithm": "EAGLE"}, {}, "old draft model"),
        ({"allow_auto_truncate": True}, {}, "cut long contexts"),
        ({}, {"preferred_sampling_params": {"top_k": 20}}, "would join the run's"),
        ({}, {"model_path": "Qwen/Qwen3-0.6B"}, "cannot be read here"),
    ],
)
def test_servers_that_would_not_do_what_the_run_says_get_no_weights(
    make: Make, server: ScriptedServer, weights: PublishedWeights, info: dict, model: dict, message: str
) -> None:
    server.server_info, server.model_info = info, model
    with pytest.raises(WeightsError, match=message):
        make().publish(weights)
    assert server.of("/update_weights_from_disk") == []


def test_a_server_of_another_model_gets_no_weights(
    make: Make, server: ScriptedServer, weights: PublishedWeights
) -> None:
    other = dataclasses.replace(TINY, num_layers=2, rope_theta=1e6)
    with pytest.raises(WeightsError, match=r"num_layers is 1 in .*, the run has 2(.|\n)*rope_theta is 10000"):
        make(model=other).publish(weights)
    assert server.of("/update_weights_from_disk") == []


# -------------------------------------------------------------------------------- config, processes
@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"sglang": {"urls": []}}, "expected distinct ones like http://host:30000"),
        ({"sglang": {"urls": ["localhost:30000"]}}, "expected distinct ones"),
        ({"sglang": {"urls": ["http://a:1", "http://a:1/"]}}, "expected distinct ones"),
        ({"sglang": {"urls": ["http://a"], "launch": ["sglang"]}}, "needs http://host:port"),
        ({"sglang": {"urls": ["http://a:1"], "router": "http://a:1"}}, "none of urls"),
        ({"sglang": {"router": "a:1"}}, "none of urls"),
        ({"engine": "sglang", "top_k": 4, "top_p": 0.5}, "rollout: top_k 4 with top_p 0.5"),
        ({"engine": "vllm"}, "rollout.engine"),
    ],
)
def test_config_faults_are_named(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config({"rollout": tree})


def test_a_server_that_ends_at_once_is_not_started_for_ever(tmp_path: Path) -> None:
    code = "print('no such option: --dtyp'); raise SystemExit(3)"
    server = LocalServer([sys.executable, "-c", code], tmp_path, "http://127.0.0.1:9", tmp_path / "log")
    with pytest.raises(EngineLostError, match=r"ended 3 times soon .*code 3\)(.|\n)*no such option: --dtyp"):
        for _ in range(5):
            server.start()
            while server.running:
                time.sleep(0.01)
    absent = LocalServer([str(tmp_path / "absent")], tmp_path, "http://127.0.0.1:9", tmp_path / "log")
    with pytest.raises(EngineLostError, match="cannot start an SGLang server"):
        absent.start()


def test_a_server_ends_with_the_processes_that_it_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    server = LocalServer([sys.executable, "-c", code], tmp_path, "http://127.0.0.1:9", tmp_path / "log")
    server.start()
    server.start()  # runs: nothing happens
    deadline = time.monotonic() + 20
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child = int((tmp_path / "child").read_text())
    server.stop()
    assert not server.running
    stat = Path(f"/proc/{child}/stat")
    while stat.exists() and stat.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "the child outlived its server"
        time.sleep(0.01)


def test_a_server_of_a_killed_process_is_found_used_and_stopped(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import time; time.sleep(120)"]
    url, log = "http://127.0.0.1:9", tmp_path / "server.log"
    start = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from autoforge_jax.rollout.sglang_local import LocalServer\n"
        f"LocalServer({words!r}, Path({str(tmp_path)!r}), {url!r}, Path({str(log)!r})).start()\n"
        "print('started', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"started\n"
        pid = int((tmp_path / "server.pid").read_text().split()[0])
        server = LocalServer(words, tmp_path, url, log)
        assert not server.running, "it has an owner"
        owner.kill()
    server.adopt()
    assert server.running
    server.start()  # it is there: no second one
    assert (tmp_path / "server.pid").read_text().split() == [str(pid), str(os.getpid())]
    another = LocalServer(words, tmp_path, "http://127.0.0.1:10", log)
    another.stop()
    assert server.running, "another server's process is not ours"
    server.stop()
    assert not server.running and not (tmp_path / "server.pid").exists()


def test_an_interrupted_call_aborts_what_it_sent(
    make: Make, server: ScriptedServer, weights: PublishedWeights
) -> None:
    engine = make()
    engine.publish(weights)
    server.hang.set()

    def interrupt() -> None:
        while len(server.of("/generate")) < 2:
            time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        engine.sample([request("a"), request("b")])
    asked = sorted(body["rid"] for body in server.of("/generate"))
    assert sorted(body["rid"] for body in server.of("/abort_request")) == asked
