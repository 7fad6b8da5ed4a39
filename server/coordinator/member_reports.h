// What processes report about themselves, made safe to keep: texts and lists of bounded length, numbers that are
// numbers.
//
// Thread safety: plain functions.
#pragma once

#include <cstddef>
#include <string>

#include "proto/coordinator.pb.h"

namespace lodestone::server {

inline constexpr size_t kReportTextBytesMax = 1024;  // Of any text that a process reports about itself.

// The beginning of a text that is too long.
std::string Bounded(const std::string& text);
void BoundProgress(v1::WorkerProgress* progress);
void BoundProgress(v1::ServerProgress* progress);

}  // namespace lodestone::server
