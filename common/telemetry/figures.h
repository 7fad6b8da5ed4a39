// The figures of a status message: its fields with the option (figure), which says how they are added up, shown and
// exported as metrics (proto/options.proto). Tables, the page and metrics are derived from them.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "proto/options.pb.h"

namespace lodestone {

// A figure of a message type. Plain pointers into its descriptor, which lives as long as the process.
struct Figure {
  const google::protobuf::FieldDescriptor* field = nullptr;
  const v1::Figure* options = nullptr;
  const google::protobuf::FieldDescriptor* limit = nullptr;  // Null: it has none.

  uint64_t Of(const google::protobuf::Message& status) const;
  // 0: none.
  uint64_t LimitOf(const google::protobuf::Message& status) const;
};

// In the order in which the type declares them. REQUIRES: figures are fields of type uint64.
std::vector<Figure> FiguresOf(const google::protobuf::Descriptor& type);

// Sets a figure by the name of its field. REQUIRES: `status` has such a field.
void SetFigure(const std::string& name, uint64_t value, google::protobuf::Message* status);

// Merges the figures of `from` into those of `to`, a message of the same type: sums, or maxima. Other fields stay.
void MergeFigures(const google::protobuf::Message& from, google::protobuf::Message* to);

// The figures that have a column, as a JSON array: [{"field", "label", "hint", "bytes", "limit"}].
std::string FiguresJson(const google::protobuf::Descriptor& type);

}  // namespace lodestone
