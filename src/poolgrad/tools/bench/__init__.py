"""Benchmarks: times every row beside other libraries and relative to a copy of memory.

The floor of a row is the time of a copy of as many bytes as it must move. poolgrad, the other
libraries and the copy alternate, and medians are compared.

| file | content |
|---|---|
| `rows.py`, `networks.py`, `jax.py` | what is timed: calls, networks, calls of JAX |
| `peers.py`, `steps.py` | the same calls by other libraries; a training step of a network |
| `measure.py`, `measure_network.py` | time a row; time a network |
| `algorithms.py`, `overhead.py` | time each algorithm of a row; time small calls |
| `load.py` | `--callers`, `--busy`: time a short call under load |
| `gpu_model.py` | `--device cuda --dry-run`: bytes and times of the GPU kernels, not run |
| `profiling.py`, `factory.py` | `poolgrad profile`: the share of pooling in a network's time |
| `result.py`, `targets.py` | results, and the targets that they should meet |
| `report.py`, `files.py`, `pictures.py` | tables, files and plots of the results |

Tests: ``tests/speed_paths/test_bench*.py``, ``test_profile.py`` and ``test_call_overhead.py``.
"""
