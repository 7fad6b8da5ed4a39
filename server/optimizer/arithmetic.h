// The arithmetic of this machine, as far as tables come to depend on it: the kernels that its processor is given, and
// the mathematical functions of its library. Owner and follower are bit for bit the same only if it is the same.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace lodestone::server {

// A hash over what a fixed small computation gives: values of each initializer, and some steps of each optimizer. Never
// 0. Computed once.
uint64_t ArithmeticFingerprint();

// What may make the difference: "AVX2, glibc 2.36".
std::string ArithmeticName();

}  // namespace lodestone::server
