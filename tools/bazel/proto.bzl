"""lodestone_proto: one .proto file to one cc_library, by the system's protoc."""

def lodestone_proto(name, src, deps = [], grpc = False):
    """Generates C++ for `src` and wraps it in the cc_library `name`.

    Args:
      name: the cc_library's name; its headers are included as "proto/STEM.pb.h".
      src: the .proto file of this package.
      deps: other lodestone_proto targets whose .proto files `src` imports.
      grpc: also generate the services (STEM.grpc.pb.h).
    """
    stem = src[:-len(".proto")]
    outs = [stem + ".pb.h", stem + ".pb.cc"]
    plugin = ""
    if grpc:
        outs += [stem + ".grpc.pb.h", stem + ".grpc.pb.cc"]
        plugin = "--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin --grpc_out=$(GENDIR)"
    native.filegroup(
        name = name + "_src",
        srcs = [src] + [dep + "_src" for dep in deps],
    )
    native.genrule(
        name = name + "_gen",
        srcs = [":" + name + "_src"],
        outs = outs,
        cmd = "/usr/bin/protoc -I. --cpp_out=$(GENDIR) %s %s/%s" % (plugin, native.package_name(), src),
    )
    native.cc_library(
        name = name,
        srcs = [out for out in outs if out.endswith(".cc")],
        hdrs = [out for out in outs if out.endswith(".h")],
        copts = ["-Wno-unused-parameter"],
        deps = deps + (["//tools/bazel:grpc"] if grpc else []) + ["//tools/bazel:protobuf"],
    )
