"""Lines about work that makes a program wait.

Tier: quick, 3 s.
"""

import logging
import time

import pytest
import torch
import zoo
from torch import nn

tightfit = zoo.use_tightfit()
from tightfit import notices  # noqa: E402


def bare(monkeypatch) -> None:
    """Makes logging what it is in a program that has not set it up."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(notices.LOGGER, "level", logging.NOTSET)


def test_what_takes_long_says_so_while_it_goes_on_and_at_its_end(monkeypatch, capsys):
    bare(monkeypatch)
    monkeypatch.setattr(notices, "PATIENCE", 0.05)
    with notices.noticed("planning"):
        time.sleep(0.5)
        assert capsys.readouterr().err == "tightfit: planning …\n"
    err = capsys.readouterr().err
    assert err.startswith("tightfit: planning took 0.")
    assert err.endswith(" s\n")


def test_what_does_not_is_told_to_those_who_ask(monkeypatch, capsys):
    bare(monkeypatch)
    monkeypatch.setattr(notices, "PATIENCE", 60.0)
    with notices.noticed("planning"):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(notices.LOGGER, "level", logging.DEBUG)
    with notices.noticed("planning"):
        pass
    assert capsys.readouterr().err == "tightfit: planning took 0.0 s\n"


def test_a_program_that_logs_decides(caplog, capsys, monkeypatch):
    monkeypatch.setattr(notices, "PATIENCE", 0.0)
    with caplog.at_level(logging.WARNING), notices.noticed("planning"):
        time.sleep(0.1)
    assert caplog.records == []
    assert capsys.readouterr().err == ""
    with caplog.at_level(logging.INFO), notices.noticed("planning"):
        time.sleep(0.1)
    assert {record.name for record in caplog.records} == {"tightfit"}


def test_captures_and_plans_have_names_and_shapes(caplog):
    model = tightfit.compile(nn.Sequential(nn.Linear(4, 3)), "1MiB", deadline=0.05)
    with caplog.at_level(logging.DEBUG, "tightfit"):
        model(torch.randn(2, 4)).sum().backward()
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("capturing Sequential on a batch of [2, 4]") for line in lines)
    assert any(line.startswith("planning Sequential for a batch of [2, 4]") for line in lines)


def test_work_that_fails_has_no_end(caplog):
    with caplog.at_level(logging.DEBUG, "tightfit"), pytest.raises(ValueError, match="no"), notices.noticed("planning"):
        raise ValueError("no")
    assert not [record for record in caplog.records if "took" in record.getMessage()]
