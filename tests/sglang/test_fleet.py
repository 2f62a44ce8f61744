"""Several real servers: as a list, and behind a real sglang-router."""

import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoforge_jax.config import SGLangConfig
from autoforge_jax.rollout.engine_sglang import SGLangEngine
from autoforge_jax.rollout.sglang_local import LocalServer
from autoforge_jax.types import SampleOutput
from tests.sglang.conftest import PATIENCE_S, PYTHON, answers, follow, free_url, freeze, start_and_wait
from tests.sglang.test_contract import LEAVES, LENGTH, context, expect_agreement, request
from tests.sglang.tiny_model import MODEL, publish_to


@pytest.fixture(scope="module")
def second(
    sglang_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    """Another server with the same model."""
    folder = tmp_path_factory.mktemp("second") / "initial"
    publish_to(folder, seed=0)
    running = LocalServer(sglang_command, folder, free_url(), folder.parent / "server.log")
    start_and_wait(running)
    yield running
    running.stop()


def sample_and_kill(
    engine: SGLangEngine, victim: LocalServer, other: LocalServer, name: str
) -> tuple[list[SampleOutput], float]:
    """8 turns, `victim` killed with SIGKILL before it answers its share; (outputs, seconds from then)."""
    asked = [request(f"{name}{i}", context(25), max_turn_tokens=60) for i in range(8)]
    outputs: list[SampleOutput] = []
    worker = threading.Thread(target=lambda: outputs.extend(engine.sample(asked)), daemon=True)
    before = engine.stats()["attempts"]
    freeze(victim)
    worker.start()
    while engine.stats()["attempts"] < before + len(asked):
        time.sleep(0.01)
    victim.kill()
    start = time.monotonic()
    follow(other, lambda: not worker.is_alive())
    assert len(outputs) == len(asked)
    for one, output in zip(asked, outputs, strict=True):
        assert output.stop != "abort", output.reason
        assert output.policy_version == engine.version
        expect_agreement(one, output, seed=engine.version)
    return outputs, time.monotonic() - start


def test_a_list_of_servers_shares_the_work_and_outlives_one_of_them(
    server: LocalServer, second: LocalServer, tmp_path: Path
) -> None:
    start_and_wait(server)
    config = SGLangConfig(urls=(server.url, second.url), start_timeout_s=PATIENCE_S)
    engine = SGLangEngine(config, MODEL, max_length=LENGTH)
    report = engine.publish(publish_to(tmp_path / "v11", seed=11, version=11))
    assert (report.servers, report.updated, report.compared) == (2, 2, 2 * LEAVES)
    starts = {one.url: one.log.read_text().count("POST /generate") for one in (server, second)}
    asked = [request(f"spread{i}", context(20)) for i in range(6)]
    for one, output in zip(asked, engine.sample(asked), strict=True):
        expect_agreement(one, output, seed=11)
    for one in (server, second):
        assert one.log.read_text().count("POST /generate") - starts[one.url] == 3, "half of them each"
    sample_and_kill(engine, second, server, "dies")
    stats = engine.stats()
    assert stats["lost_connections"] == 4, "half of the 8"
    assert stats["attempts"] == stats["requests"] + stats["lost_connections"]
    # The next weights go to who is there; who comes back gets them before it samples.
    assert engine.publish(publish_to(tmp_path / "v12", seed=12, version=12)).servers == 1
    start_and_wait(second)
    assert engine.publish(publish_to(tmp_path / "v13", seed=13, version=13)).servers == 2
    asked = [request(f"back{i}", context(20)) for i in range(4)]
    for one, output in zip(asked, engine.sample(asked), strict=True):
        assert output.policy_version == 13
        expect_agreement(one, output, seed=13)
    engine.close()


@pytest.fixture
def router(server: LocalServer, second: LocalServer, tmp_path: Path) -> Iterator[str]:
    """A real sglang-router in front of both servers."""
    start_and_wait(server)
    start_and_wait(second)
    url = free_url()
    port = url.rpartition(":")[2]
    # It would import SGLang for tracing, which needs launch_cpu.py's stand-ins and is not needed here.
    code = "import sys; sys.modules['sglang'] = None; from sglang_router.launch_router import main; main()"
    path = tmp_path / "router.log"
    with path.open("wb") as log:
        process = subprocess.Popen(
            [
                PYTHON, "-c", code, "--worker-urls", server.url, second.url,
                "--host", "127.0.0.1", "--port", port, "--policy", "round_robin",
                "--prometheus-port", free_url().rpartition(":")[2],
                "--health-check-interval-secs", "2", "--health-check-timeout-secs", "30",
                "--cb-timeout-duration-secs", "2",
            ],
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    while not answers(f"{url}/readiness"):
        assert process.poll() is None, path.read_text(errors="replace")[-2000:]
        time.sleep(0.1)
    yield url
    process.terminate()
    process.wait(30)


def test_a_router_in_front_of_the_servers(
    server: LocalServer, second: LocalServer, router: str, tmp_path: Path
) -> None:
    config = SGLangConfig(
        urls=(server.url, second.url), router=router, start_timeout_s=PATIENCE_S, attempts=6
    )

    def start(url: str) -> None:
        {server.url: server, second.url: second}[url].start()

    engine = SGLangEngine(config, MODEL, max_length=LENGTH, start_server=start)
    report = engine.publish(publish_to(tmp_path / "v21", seed=21, version=21))
    assert (report.servers, report.compared) == (2, 2 * LEAVES)
    starts = {one.url: one.log.read_text().count("POST /generate") for one in (server, second)}
    asked = [request(f"routed{i}", context(20)) for i in range(6)]
    for one, output in zip(asked, engine.sample(asked), strict=True):
        expect_agreement(one, output, seed=21)
    for one in (server, second):
        assert one.log.read_text().count("POST /generate") > starts[one.url], "the router uses both"
    sample_and_kill(engine, second, server, "dies")
    assert engine.publish(publish_to(tmp_path / "v22", seed=22, version=22)).servers >= 1
    start_and_wait(second)  # with the weights it was first started with
    for turn in range(4):
        asked = [request(f"back{turn}-{i}", context(20)) for i in range(4)]
        for one, output in zip(asked, engine.sample(asked), strict=True):
            assert output.policy_version == 22, output.reason
            expect_agreement(one, output, seed=22)
    engine.close()
