// The identity of a running ps process and the figures of the process as a whole.
//
// Thread safety: pure functions; those of bytes read /proc.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/types.h"
#include "proto/admin.pb.h"

namespace lodestone::server {

// What does not change while a ps process runs.
struct ProcessIdentity {
  uint32_t index = 0;
  std::string address;
  std::string http;  // The address of the HTTP port as others reach it; empty: there is no such port.
  Incarnation incarnation = 0;
  std::chrono::steady_clock::time_point started;
};

// Sets index, address, incarnation, version, uptime and resident memory.
void FillProcess(const ProcessIdentity& identity, v1::ServerStatus* status);

// The figures of a status that a ps reports with its heartbeats. Where the loads of its shards take more than
// `shards_bytes_max`, it has none of them.
v1::ServerProgress ProgressOf(const v1::StatusResponse& status, size_t shards_bytes_max = SIZE_MAX);

// Resident memory of this process; 0 if the system does not report it.
uint64_t ResidentBytes();
// Of it, what is the process's own: without files that it maps. 0: not known.
uint64_t PrivateBytes();

}  // namespace lodestone::server
