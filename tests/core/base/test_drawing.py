"""Drawing: a process beside this one makes the same pictures, and nothing is lost if it ends."""

from __future__ import annotations

import json
import math
import signal
import subprocess

import pytest
import vl_convert

from cabs_core.base import drawing
from cabs_core.base.drawing import draw, draw_ahead, drawing_process
from cabs_core.base.workers import worker_command

VERSION = "6.1"


def chart(*heights: float) -> str:
    """Return the specification of a bar chart as JSON."""
    values = [{"x": i, "y": height} for i, height in enumerate(heights)]
    encoding = {"x": {"field": "x", "type": "ordinal"}, "y": {"field": "y", "type": "quantitative"}}
    return json.dumps({"data": {"values": values}, "mark": "bar", "encoding": encoding, "title": "ü"})


def running() -> subprocess.Popen[str]:
    """Return the process that draws, which must have been asked for a product."""
    assert drawing._process is not None
    return drawing._process._process


@pytest.mark.parametrize("product", ["svg", "png"])
def test_the_process_draws_what_this_process_draws(product) -> None:
    expected = draw(product, VERSION, chart(1, 2))
    with drawing_process():
        draw_ahead(product, VERSION, chart(1, 2))
        assert draw(product, VERSION, chart(1, 2)) == expected
        assert draw(product, VERSION, chart(2, 1)) != expected
        assert running().poll() is None


def test_results_are_told_apart_whatever_the_order_in_which_they_are_taken() -> None:
    charts = [chart(*range(1, n)) for n in (2, 3, 4)]
    expected = [draw("svg", VERSION, text) for text in charts]
    with drawing_process():
        for text in charts:
            draw_ahead("svg", VERSION, text)
        assert [draw("svg", VERSION, text) for text in reversed(charts)] == expected[::-1]


def test_what_was_asked_for_twice_is_made_once() -> None:
    with drawing_process():
        draw_ahead("svg", VERSION, chart(1))
        draw_ahead("svg", VERSION, chart(1))
        process = drawing._process
        assert process is not None and len(process._asked) == 1
        draw("svg", VERSION, chart(1))
        assert not process._asked


def test_blocks_share_a_process_that_ends_with_the_last_of_them() -> None:
    draw_ahead("svg", VERSION, chart(1))
    assert drawing._process is None
    with drawing_process():
        with drawing_process():
            draw("svg", VERSION, chart(1))
            process = running()
        draw("svg", VERSION, chart(2))
        assert running() is process
    assert process.returncode is not None and drawing._process is None


def test_a_process_that_was_killed_is_not_missed() -> None:
    expected = draw("svg", VERSION, chart(1))
    with drawing_process():
        draw("svg", VERSION, chart(1))
        draw_ahead("png", VERSION, chart(1))
        running().kill()
        assert draw("svg", VERSION, chart(1)) == expected
        assert draw("png", VERSION, chart(1)).startswith(b"\x89PNG")


def test_a_process_that_cannot_be_started_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "worker_command", lambda name: ["/nonexistent/python"])
    with drawing_process():
        draw_ahead("svg", VERSION, chart(1))
        assert draw("svg", VERSION, chart(1)).startswith(b"<svg")


def test_a_chart_that_is_refused_is_an_error_of_the_process_that_asked_alone(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with drawing_process():
        with pytest.raises(ValueError, match="JSON"):
            draw("svg", VERSION, '{"mark":')
        draw("svg", VERSION, chart(1))
        assert running().poll() is None
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "points, width, scale", [(10, 200, 1.4), (300, 200, 1.4), (5_000, 200, 1.0), (100, 600, 0.8)]
)
def test_a_png_has_the_largest_resolution_of_less_than_100_kb(points: int, width: int, scale: float) -> None:
    values = [{"x": math.cos(i * i), "y": math.sin(i)} for i in range(points)]
    encoding = {name: {"field": name, "type": "quantitative"} for name in "xy"}
    size = {"width": width, "height": 0.7 * width}
    text = json.dumps({"data": {"values": values}, "mark": "point", "encoding": encoding} | size)
    scales = (1.4, 1.0, 0.8)
    images = {s: vl_convert.vegalite_to_png(text, vl_version=VERSION, scale=s) for s in scales}
    small_enough = [s for s in scales if len(images[s]) < drawing.LARGEST_PNG]
    assert small_enough[0] == scale, "the case is not what it should be"
    assert draw("png", VERSION, text) == images[scale]


@pytest.mark.parametrize("ended_by", ["input", "Ctrl-C"])
def test_the_process_ends_without_a_traceback(ended_by) -> None:
    command = worker_command(drawing.__name__)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(["svg", VERSION, chart(1)]) + "\n")
        process.stdin.flush()
        assert process.stdout.readline().strip()
        if ended_by == "Ctrl-C":
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGINT if ended_by == "Ctrl-C" else 0)
    assert "Traceback" not in errors
