from __future__ import annotations

import builtins

import msgspec
import numpy as np
import pytest

from concilium.errors import MessageError, MissingExtra, RecordsError
from concilium.experts import expert
from concilium.experts.expert import _read_expert, _write_expert, train_experts
from concilium.experts.expert_task import NetworkSettings
from concilium.experts.network import (
    SmallLstm,
    _draw_public,
    _find_gradient,
    _find_places,
    _fit,
    open_network,
)
from concilium.experts.patient_windows import lay_out
from concilium.protocol.cohort import SiteCache
from experts.expert_patients import make_series, make_task


def changing(laid):
    return [patient for patient in range(len(laid)) if laid.cut(patient).constant is None]


def open_in_torch(weights, inputs, units):
    """The same network in torch, in double precision."""
    torch = pytest.importorskip("torch")
    recurrent, biases, out, bias = _find_places(inputs, units)
    core = torch.nn.LSTM(inputs, units, batch_first=True).double()
    last = torch.nn.Linear(units, 1).double()
    with torch.no_grad():
        core.weight_ih_l0.copy_(torch.tensor(weights[:recurrent].reshape(inputs, -1).T))
        core.weight_hh_l0.copy_(torch.tensor(weights[recurrent:biases].reshape(units, -1).T))
        core.bias_ih_l0.copy_(torch.tensor(weights[biases:out]))
        core.bias_hh_l0.zero_()
        last.weight.copy_(torch.tensor(weights[out:bias][None]))
        last.bias.copy_(torch.tensor(weights[bias:]))
    return core, last


@pytest.mark.parametrize("units", [1, 5])
def test_outputs_and_gradients_are_those_of_torch(units):
    torch = pytest.importorskip("torch")
    laid = lay_out(make_series(8, 2, ill=1.0), make_task())
    windows, _, _ = laid.gather(np.arange(len(laid)))
    network = SmallLstm(NetworkSettings(units=units), 2)
    weights = network.begin() + 0.5 * _draw_public(9, "shaken", network.size)
    gradient = np.empty(network.size)
    loss = _find_gradient(weights, windows.inputs, windows.targets, windows.lengths, units, gradient)
    core, last = open_in_torch(weights, 2, units)
    told = last(core(torch.tensor(windows.inputs).double())[0])[..., 0]
    targets = torch.tensor(windows.targets)
    known = ~torch.isnan(targets)
    expected = ((told - targets)[known] ** 2).mean()
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    theirs = [
        core.weight_ih_l0.grad.numpy().T,
        core.weight_hh_l0.grad.numpy().T,
        core.bias_ih_l0.grad.numpy(),
        last.weight.grad.numpy(),
        last.bias.grad.numpy(),
    ]
    np.testing.assert_allclose(
        gradient, np.concatenate([one.ravel() for one in theirs]), rtol=1e-9, atol=1e-12
    )
    inside = np.arange(windows.inputs.shape[1]) < windows.lengths[:, None]
    ours = network.run([{"weights": weights}], windows)[0]
    # Answers are in single precision, and go to hospitals' sums in steps of a thousandth.
    np.testing.assert_allclose(ours[inside], told.detach().numpy()[inside], rtol=1e-5, atol=1e-5)
    assert not ours[~inside].any()


def test_training_lowers_the_error_clips_gradients_and_stops_early():
    laid = lay_out(make_series(6, 5, ill=1.0), make_task())
    windows = laid.cut(changing(laid)[0])

    def measure(settings):
        network = SmallLstm(settings, 2)
        told = network.run([network.train(windows)], windows)[0]
        return np.nanmean((told - windows.targets) ** 2)

    long = measure(NetworkSettings(units=4, epochs=200))
    assert long < 0.5 * measure(NetworkSettings(units=4, epochs=1))
    begin = SmallLstm(NetworkSettings(units=4), 2).begin()
    epochs = _fit(
        begin, windows.inputs, windows.targets, windows.lengths, 4, 1, 500, 1e-9, 0.25, 0.0, 3, 0.01
    )
    assert epochs == 4  # a loss that does not fall is not waited for
    # Adam forgets the size of gradients; one step of a clipped one is as long as its rate, whatever the loss.
    huge = type(windows)(windows.inputs, windows.targets * 1e6, windows.lengths)
    moved = SmallLstm(NetworkSettings(units=4, epochs=1, rate=0.01), 2).train(huge)["weights"] - begin_of(4)
    assert np.abs(moved).max() < 0.01 * len(windows) * 3


def begin_of(units):
    return SmallLstm(NetworkSettings(units=units), 2).begin()


@pytest.mark.parametrize("kind", ["lstm", "torch-lstm"])
def test_every_network_learns_the_same_from_the_same_and_can_be_kept(kind):
    if kind.startswith("torch"):
        pytest.importorskip("torch").set_num_threads(1)
    network = NetworkSettings(kind=kind, units=4, layers=1 + (kind != "lstm"), epochs=3, dropout=0.2)
    laid = lay_out(make_series(6, 1, ill=1.0), make_task(network=network))
    patients = changing(laid)[:2]
    first, again = train_experts(laid, patients), train_experts(laid, patients[::-1])[::-1]
    windows = laid.cut(patients[0])
    runner = open_network(network, 2)
    for one, other in zip(first, again, strict=True):
        kept = _read_expert(_write_expert(other))
        assert kept.septic
        for name, values in one.weights.items():
            np.testing.assert_array_equal(values, kept.weights[name])
    both = runner.run([expert.weights for expert in first], windows)
    assert both.shape == (2, len(windows), windows.inputs.shape[1])
    alone = runner.run([first[1].weights], windows)
    np.testing.assert_allclose(both[1], alone[0])


def test_threads_train_the_same_experts_and_progress_is_told():
    laid = lay_out(make_series(10, 4), make_task())
    here = train_experts(laid, range(10), workers=1)
    told = []
    apart = train_experts(laid, range(10), workers=4, on_progress=lambda ready, of: told.append((ready, of)))
    assert told[-1] == (10, 10)
    assert [ready for ready, _ in told] == sorted(ready for ready, _ in told)
    for one, other in zip(here, apart, strict=True):
        assert _write_expert(one) == _write_expert(other)


def test_what_is_trained_is_kept_and_training_goes_on_where_it_ended(monkeypatch, tmp_path):
    laid = lay_out(make_series(10, 4), make_task())
    trained = []
    train = expert._train_one

    def count(settings, windows):
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(windows.digest)
        return train(settings, windows)

    monkeypatch.setattr(expert, "_train_one", count)
    cache = SiteCache(tmp_path / "north.ledger.cache")
    with pytest.raises(KeyboardInterrupt):
        train_experts(laid, range(10), cache, workers=1)
    files = sorted((tmp_path / "north.ledger.cache").iterdir())
    assert len(files) == 2
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)  # an expert is as private as its patient
    monkeypatch.setattr(expert, "_train_one", train)
    again = train_experts(laid, range(10), cache)
    assert [_write_expert(one) for one in again] == [
        _write_expert(one) for one in train_experts(laid, range(10))
    ]
    files[0].write_bytes(b"no expert")
    mended = train_experts(laid, range(10), cache)
    assert [_write_expert(one) for one in mended] == [_write_expert(one) for one in again]
    with pytest.raises(RecordsError, match="this is no expert"):
        _read_expert(b"no expert")


def test_a_patient_without_a_change_has_its_number_as_expert_and_no_network():
    series = make_series(4, 1, ill=0.0)
    experts = train_experts(lay_out(series, make_task()), range(4))
    assert [(one.weights, one.constant, one.septic) for one in experts] == [(None, 0.0, False)] * 4
    unknown = series.with_stays(
        {**series.stays, "sepsis": np.full(len(series.stays["sepsis"]), np.float32(np.nan))}
    )
    assert train_experts(lay_out(unknown, make_task()), range(1))[0].constant == 0.0
    ill = series.with_stays({**series.stays, "sepsis": np.ones_like(series.stays["sepsis"])})
    assert train_experts(lay_out(ill, make_task()), range(1))[0].constant == 4.0


def test_nobody_who_comes_or_goes_changes_another_s_expert():
    series, task = make_series(8, 6), make_task()
    whole = train_experts(lay_out(series, task), range(8))
    rest = train_experts(lay_out(series.take(np.arange(1, 8)), task), range(7))
    assert [_write_expert(one) for one in whole[1:]] == [_write_expert(one) for one in rest]


def test_a_network_that_is_not_there_is_named(monkeypatch):
    with pytest.raises(MessageError, match="there is no network 'lsmt'; did you mean 'lstm'"):
        open_network(NetworkSettings(kind="lsmt"), 2)
    find = builtins.__import__

    def without_torch(name, *rest):
        if name == "torch":
            raise ImportError
        return find(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    with pytest.raises(MissingExtra, match=r"pip install 'concilium\[experts\]'"):
        open_network(NetworkSettings(kind="torch-lstm"), 2)


def test_public_chance_is_the_same_for_everybody_and_fills_its_range():
    drawn = _draw_public(1, "a", 4000)
    np.testing.assert_array_equal(drawn, _draw_public(1, "a", 4000))
    assert not np.array_equal(drawn, _draw_public(2, "a", 4000))
    assert drawn.min() >= -1
    assert drawn.max() < 1
    assert abs(drawn.mean()) < 0.05
    assert abs(drawn.var() - 1 / 3) < 0.03


def test_settings_travel():
    task = make_task()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(task), type=type(task)) == task
