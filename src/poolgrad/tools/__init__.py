"""Tools around the library: each is a function first, and a command of `poolgrad` second.

| module | question | command |
|---|---|---|
| `check` | Are all gradients right in every front end that is installed? | `poolgrad check` |
| `bench` | How fast is each call, beside other libraries and a copy of memory? | `poolgrad bench` |
| `bench.profiling` | Which part of a training step is pooling? | `poolgrad profile` |
| `info` | Which versions, processor and settings does a bug report need? | `poolgrad info` |
| `plan` | Which algorithms compute one call, moving how many bytes? | `poolgrad info --plan` |
| `algorithms` | Which kernels does a call run? Forces an algorithm in tests and benchmarks | |
| `progress` | Shows on standard error what a long command does | |

`check`, `info`, `plan`, `algorithms` and `progress` need NumPy alone; `bench` needs PyTorch and the
`lab` extra. The library does not import this package. Tests: ``tests/gradients/test_check.py``,
``tests/frontends/test_info.py``, ``tests/speed_paths``.
"""
