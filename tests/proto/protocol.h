// What two versions have to agree on to run in one cluster, and to read each other's files: every field, value and
// method of the messages between processes, of the log and of checkpoints.
//
// Thread safety: pure.
#pragma once

#include <string>
#include <vector>

namespace lodestone {

// One line for each, in order: "field lodestone.v1.Part.shard = 1: uint32", "value …", "method …", and "reserved
// lodestone.v1.Part 7" for numbers that must not be used again.
std::vector<std::string> ProtocolLines();

// What processes of the version that `former` describes would miss or misread in this version's messages: its lines
// that `current` lacks, but for fields and values whose number is reserved now.
std::vector<std::string> BrokenBy(const std::vector<std::string>& former, const std::vector<std::string>& current);

}  // namespace lodestone
