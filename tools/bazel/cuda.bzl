"""CUDA: where the toolkit is, and how .cu files are compiled. A machine without the toolkit leaves all of it out."""

# Machine code for Turing (T4, RTX 20), A100 (which later devices of the 8 series run too) and Hopper, and PTX, which the
# drivers of whatever comes later compile themselves. The least is what kernels/cuda_backend.cu asks of a device.
_ARCHITECTURES = [
    "-gencode=arch=compute_75,code=sm_75",
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=[sm_90,compute_90]",
]
_VERSION_MIN = 12000  # The first whose nvcc knows C++20.

_PARTS = ["bin/nvcc", "include/cuda.h", "include/cublas_v2.h", "lib64/libcudart_static.a"]

def _flaw(repository_ctx, root):
    """What keeps a folder from being used as the toolkit; None: nothing does."""
    missing = [part for part in _PARTS if not repository_ctx.path(root + "/" + part).exists]
    if missing:
        return "has no " + " and no ".join(missing)
    for line in repository_ctx.read(root + "/include/cuda.h").split("\n"):
        if line.startswith("#define CUDA_VERSION "):
            version = int(line.split(" ")[-1])
            if version < _VERSION_MIN:
                return "is CUDA %d.%d" % (version // 1000, version % 1000 // 10)
            return None
    return "does not say its version in include/cuda.h"

def _cuda_toolkit_impl(repository_ctx):
    wish = repository_ctx.os.environ.get("LODESTONE_CUDA", "")
    root = ""
    if wish != "no":
        for candidate in ([wish] if wish else ["/usr/local/cuda", "/opt/cuda"]):
            flaw = _flaw(repository_ctx, candidate)
            if not flaw:
                root = candidate
                break
            if wish:
                fail("LODESTONE_CUDA is %s, which %s: a CUDA toolkit of version 12 or later is needed" % (wish, flaw))
            if repository_ctx.path(candidate).exists:
                # buildifier: disable=print
                print("%s is left out: it %s; a CUDA toolkit of version 12 or later is needed" % (candidate, flaw))
    repository_ctx.file("defs.bzl", "CUDA_ROOT = %r\n" % root)
    build = "package(default_visibility = [\"//visibility:public\"])\n"
    if root:
        repository_ctx.symlink(root + "/include", "include")
        repository_ctx.symlink(root + "/lib64", "lib64")
        build += """
# The static runtime: programs start where there is no CUDA library, and it looks for the driver itself.
cc_library(
    name = "runtime",
    srcs = ["lib64/libcudart_static.a"],
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/*", "include/nv/**", "include/cccl/nv/**"]),
    includes = ["include", "include/cccl"],
    linkopts = ["-ldl", "-lrt", "-lpthread"],
)
"""
    repository_ctx.file("BUILD", build)

# The repository of the toolkit. --repo_env=LODESTONE_CUDA=no builds as if there was none; a folder instead of "no" says
# where it is.
cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit_impl,
    environ = ["LODESTONE_CUDA"],
    configure = True,
    local = True,
)

def cuda_library(name, srcs, hdrs, root, deps = [], **kwargs):
    """Compiles .cu files by nvcc, and its own headers' .cc files by nobody: give those to a cc_library.

    Args:
      name: the cc_library's name.
      srcs: .cu files.
      hdrs: all headers of ours that they include.
      root: CUDA_ROOT of @cuda//:defs.bzl.
      deps: what the objects are linked with.
      **kwargs: of the cc_library.
    """
    objects = []
    for src in srcs:
        stem = src[:-len(".cu")]
        objects.append(stem + ".cu.o")
        native.genrule(
            name = name + "_" + stem,
            srcs = [src] + hdrs,
            outs = [stem + ".cu.o"],
            # No -lineinfo: it writes down where the build was.
            cmd = " ".join(
                [root + "/bin/nvcc", "-std=c++20", "-O3", "-I."] + _ARCHITECTURES +
                ["-Xcompiler=-fPIC,-Wall,-Wextra,-Wno-sign-compare,-Wno-unused-parameter,-Wno-missing-field-initializers"] +
                ["-c", "$(location %s)" % src, "-o", "$@"],
            ),
            message = "Compiling " + src,
            visibility = ["//visibility:private"],
        )
    native.cc_library(
        name = name,
        srcs = objects,
        deps = deps + ["@cuda//:runtime"],
        **kwargs
    )

def emulated_cuda_library(name, srcs, copts = [], **kwargs):
    """Compiles .cu files for the CPU: as C++, with whatever headers `deps` have for CUDA's.

    Args:
      name: the cc_library's name.
      srcs: labels of .cu and .cc files.
      copts: further flags.
      **kwargs: of the cc_library.
    """
    sources = []
    for src in srcs:
        out = name + "_" + src.split(":")[-1].replace(".", "_") + ".cc"
        native.genrule(name = out[:-len(".cc")] + "_copy", srcs = [src], outs = [out], cmd = "cp $< $@")
        sources.append(out)
    native.cc_library(name = name, srcs = sources, copts = copts + ["-Wno-unknown-pragmas"], **kwargs)
