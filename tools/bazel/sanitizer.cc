// What the sanitizers must know about the system's libraries, which are not instrumented: ThreadSanitizer does not see
// how gRPC, protobuf and Abseil synchronise, gRPC's timer thread may end after its process does, c-ares keeps a few
// bytes at exit, and gRPC 1.51 loses a slice buffer of 576 bytes with each TLS connection. Linked into everything that
// uses gRPC; empty in builds without a sanitizer.
#ifdef LODESTONE_SANITIZER

extern "C" {

const char* __tsan_default_options() { return "ignore_noninstrumented_modules=1:second_deadlock_stack=1"; }

const char* __tsan_default_suppressions() {
  return "race:libgrpc.so\n"
         "race:libgrpc++.so\n"
         "race:libgrpc++_reflection\n"
         "race:libprotobuf.so\n"
         "race:libabsl\n"
         "race:^grpc::\n"
         "race:^grpc_core::\n"
         "race_top:common/rpc/tuning.cc\n"  // The functor that gRPC hands over.
         "thread:grpc_core::Thread\n"
         "called_from_lib:libgrpc.so\n"
         "called_from_lib:libgrpc++.so\n"
         "called_from_lib:libgrpc++_reflection.so\n"
         "called_from_lib:libprotobuf.so\n";
}

const char* __lsan_default_suppressions() {
  return "leak:libcares\n"
         "leak:gpr_realloc\n";
}

}  // extern "C"

#endif  // LODESTONE_SANITIZER
