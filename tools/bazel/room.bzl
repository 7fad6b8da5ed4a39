"""A room's library and its test program, compiled several sources at a time (a unity build).

Reading headers takes two thirds of a source's time: gRPC, protobuf and Abseil are most of what the compiler sees. So a
few sources of a room are included by one generated source, and read the same headers once: the 18 sources of
worker/client take 15 s of one core together and 50 s apart. Names in unnamed namespaces must differ within a room therefore.

--define=unity=off compiles each source by itself, which finds an include that is missing (tools/check gcc).
"""

# GCC minds names of an unnamed namespace in a file that is included.
_COPTS = ["-Wno-subobject-linkage"]

_SOURCES_MAX = 8  # Of one generated source: what a change of one line compiles again.

def _including_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".cc")
    ctx.actions.write(out, "".join(["#include \"%s\"\n" % src.short_path for src in ctx.files.srcs]))
    return [DefaultInfo(files = depset([out]))]

_including = rule(
    implementation = _including_impl,
    attrs = {"srcs": attr.label_list(allow_files = [".cc"])},
)

def _together(name, srcs):
    """Sources that include `srcs`, each several of them, as labels."""
    count = (len(srcs) + _SOURCES_MAX - 1) // _SOURCES_MAX
    labels = []
    for i in range(count):
        label = "%s_sources_%d" % (name, i)
        _including(
            name = label,
            srcs = srcs[i * len(srcs) // count:(i + 1) * len(srcs) // count],
            tags = ["manual"],
            visibility = ["//visibility:private"],
        )
        labels.append(label)
    return labels

def _compiled(name, srcs):
    return select({
        "//tools/bazel:unity_off": srcs,
        "//conditions:default": _together(name, srcs),
    })

def room_library(name, srcs, alone = [], copts = [], textual_hdrs = [], **kwargs):
    """A cc_library.

    Args:
      name: the library's name.
      srcs: its sources.
      alone: sources that cannot share a compilation with others: they define macros, or are included several times.
      copts: of the cc_library.
      textual_hdrs: of the cc_library.
      **kwargs: further attributes of the cc_library.
    """
    native.cc_library(
        name = name,
        srcs = _compiled(name, srcs) + alone,
        copts = _COPTS + copts,
        textual_hdrs = srcs + textual_hdrs,
        **kwargs
    )

def room_test(name, srcs, alone = [], copts = [], deps = [], **kwargs):
    """A cc_test.

    Args:
      name: the program's name.
      srcs: its sources.
      alone: sources that cannot share a compilation with others.
      copts: of the cc_test.
      deps: of the cc_test.
      **kwargs: further attributes of the cc_test.
    """
    native.cc_library(
        name = name + "_included",
        testonly = True,
        textual_hdrs = srcs,
        tags = ["manual"],
        visibility = ["//visibility:private"],
    )
    native.cc_test(
        name = name,
        srcs = _compiled(name, srcs) + alone,
        copts = _COPTS + copts,
        deps = deps + [name + "_included"],
        **kwargs
    )
