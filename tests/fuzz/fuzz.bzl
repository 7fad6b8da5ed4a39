"""libFuzzer programs; they need clang (--config=asan). tools/check runs each for a while."""

_FUZZ = ["-fsanitize=fuzzer,address"]

def fuzz_target(name, deps):
    """The program of NAME.cc.

    Args:
      name: the program's name.
      deps: as of a cc_binary.
    """
    native.cc_binary(
        name = name,
        testonly = True,
        srcs = [name + ".cc"],
        copts = _FUZZ,
        linkopts = _FUZZ,
        tags = ["manual"],
        deps = deps,
    )
