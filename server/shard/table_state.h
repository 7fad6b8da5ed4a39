// The contents of one table's part of one shard, as a checkpoint keeps them: the input of a rollback.
//
// Thread safety: a value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/types.h"
#include "proto/checkpoint.pb.h"

namespace lodestone::server {

struct TablePart {
  struct Record {
    v1::CheckpointRecord message;  // A block, or rows or a page.
    std::string payload;
  };
  TableId table = 0;
  Version version = 0;  // Of the shard, when it held this.
  std::vector<Record> records;
};

}  // namespace lodestone::server
