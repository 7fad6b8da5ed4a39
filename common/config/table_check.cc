#include "common/config/table_check.h"

#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/config/field_range.h"
#include "common/config/yaml_scalar.h"
#include "google/protobuf/unknown_field_set.h"
#include "google/protobuf/util/field_comparator.h"
#include "google/protobuf/util/message_differencer.h"

namespace lodestone {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;
using google::protobuf::UnknownField;
using google::protobuf::util::DefaultFieldComparator;
using google::protobuf::util::MessageDifferencer;

std::string Below(const std::string& path, const std::string& name) {
  return path.empty() ? name : absl::StrCat(path, ".", name);
}

// "optimizer: field 10" or "embedding.eviction.policy: value 7": the first thing that this program does not know.
std::optional<std::string> FirstUnknown(const Message& message, const std::string& path) {
  const google::protobuf::UnknownFieldSet& unknown = message.GetReflection()->GetUnknownFields(message);
  if (!unknown.empty()) {
    const UnknownField& first = unknown.field(0);
    const FieldDescriptor* const field = message.GetDescriptor()->FindFieldByNumber(first.number());
    // Of an enum, a value without a name is kept as an unknown field.
    if (field != nullptr && field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM &&
        first.type() == UnknownField::TYPE_VARINT) {
      return absl::StrCat(Below(path, field->name()), ": value ", first.varint());
    }
    return absl::StrCat(path.empty() ? "" : absl::StrCat(path, ": "), "field ", first.number());
  }
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* const field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const std::string below = Below(path, field->name());
    const int size = field->is_repeated() ? reflection.FieldSize(message, field) : 0;
    std::optional<std::string> found;
    for (int i = 0; i < size && !found.has_value(); ++i) {
      found = FirstUnknown(reflection.GetRepeatedMessage(message, field, i), absl::StrCat(below, "[", i, "]"));
    }
    if (!field->is_repeated()) found = FirstUnknown(reflection.GetMessage(message, field), below);
    if (found.has_value()) return found;
  }
  return std::nullopt;
}

// The name of the member of a oneof that is set, or that none being set stands for.
std::string KindOf(const Message& message, const OneofDescriptor& oneof) {
  const FieldDescriptor* const set = message.GetReflection()->GetOneofFieldDescriptor(message, &oneof);
  if (set != nullptr) return set->name();
  if (oneof.containing_type() == v1::Consistency::descriptor()) return "async";
  if (oneof.containing_type() == v1::Optimizer::descriptor()) return "sgd";
  if (oneof.containing_type() == v1::Initializer::descriptor()) return "zeros";
  return "none";
}

// Where two messages have other members of a oneof, though these say the same: "modified: consistency.async ->
// bounded".
std::string OtherKinds(const Message& a, const Message& b, const std::string& path) {
  std::string differences;
  for (int i = 0; i < a.GetDescriptor()->real_oneof_decl_count(); ++i) {
    const OneofDescriptor& oneof = *a.GetDescriptor()->oneof_decl(i);
    const std::string kind_a = KindOf(a, oneof), kind_b = KindOf(b, oneof);
    if (kind_a != kind_b) absl::StrAppend(&differences, "modified: ", path, kind_a, " -> ", kind_b, "\n");
  }
  for (int i = 0; i < a.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *a.GetDescriptor()->field(i);
    if (field.is_repeated() || field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!a.GetReflection()->HasField(a, &field) && !b.GetReflection()->HasField(b, &field)) continue;
    absl::StrAppend(&differences,
                    OtherKinds(a.GetReflection()->GetMessage(a, &field), b.GetReflection()->GetMessage(b, &field),
                               absl::StrCat(path, field.name(), ".")));
  }
  return differences;
}

}  // namespace

void CheckOptimizer(const v1::Optimizer& optimizer, const std::string& path, std::vector<ConfigProblem>* problems) {
  const v1::Adagrad& adagrad = optimizer.adagrad();
  if (optimizer.has_adagrad() && adagrad.epsilon() == 0 && adagrad.initial_accumulator() == 0) {
    problems->push_back({path + ".adagrad.epsilon", "must be above 0 where initial_accumulator is 0"});
  }
  const v1::RowwiseAdagrad& rowwise = optimizer.rowwise_adagrad();
  if (optimizer.has_rowwise_adagrad() && rowwise.epsilon() == 0 && rowwise.initial_accumulator() == 0) {
    problems->push_back({path + ".rowwise_adagrad.epsilon", "must be above 0 where initial_accumulator is 0"});
  }
  if (optimizer.has_ftrl() && !(optimizer.learning_rate() > 0)) {
    problems->push_back({path + ".learning_rate", "must be above 0 for ftrl, which divides by it"});
  }
}

void CheckInitializer(const v1::Initializer& initializer, bool is_embedding, const std::string& path,
                      std::vector<ConfigProblem>* problems) {
  if (initializer.has_uniform() && initializer.uniform().low() > initializer.uniform().high()) {
    problems->push_back({path + ".uniform.low", "must not be above high"});
  }
  if (is_embedding && (initializer.has_xavier() || initializer.has_he())) {
    problems->push_back({absl::StrCat(path, ".", initializer.has_he() ? "he" : "xavier"),
                         "is for dense tables only: the rows of an embedding have no fan-in"});
  }
  if (!is_embedding && initializer.zero_columns() > 0) {
    problems->push_back({path + ".zero_columns", "is about the rows of embeddings; leave it out"});
  }
}

absl::Status CheckTableSpec(const v1::TableSpec& spec) {
  LODESTONE_RETURN_IF_ERROR(CheckKnown(spec));
  std::vector<ConfigProblem> problems;
  CheckRanges(spec, "", &problems);
  CheckOptimizer(spec.optimizer(), "optimizer", &problems);
  CheckInitializer(spec.initializer(), spec.has_embedding(), "initializer", &problems);
  if (spec.has_embedding() && spec.initializer().zero_columns() > spec.embedding().dim()) {
    problems.push_back(
        {"initializer.zero_columns", absl::StrCat("must not be above the ", spec.embedding().dim(),
                                                  " floats of a row, is ", spec.initializer().zero_columns())});
  }
  if (problems.empty()) return absl::OkStatus();
  const auto text = [](std::string* out, const ConfigProblem& problem) {
    absl::StrAppend(out, problem.path, ": ", problem.what);
  };
  return absl::InvalidArgumentError(
      absl::StrCat("table ", Quote(spec.name()), ": ", absl::StrJoin(problems, "; ", text)));
}

absl::Status CheckKnown(const v1::TableSpec& spec) {
  const std::optional<std::string> unknown = FirstUnknown(spec, "");
  if (!unknown.has_value()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("table ", Quote(spec.name()), ": ", *unknown,
                                               " is not known to this program; use one that is as new as the one "
                                               "that sent or wrote it"));
}

std::string Differences(const Message& a, const Message& b) {
  const std::unique_ptr<Message> known_a(a.New());
  const std::unique_ptr<Message> known_b(b.New());
  known_a->CopyFrom(a);
  known_b->CopyFrom(b);
  known_a->DiscardUnknownFields();
  known_b->DiscardUnknownFields();
  std::string differences;
  DefaultFieldComparator comparator;
  comparator.set_treat_nan_as_equal(true);
  MessageDifferencer differencer;
  differencer.set_field_comparator(&comparator);
  differencer.set_message_field_comparison(MessageDifferencer::EQUIVALENT);
  differencer.ReportDifferencesToString(&differences);
  return differencer.Compare(*known_a, *known_b) ? OtherKinds(*known_a, *known_b, "") : differences;
}

}  // namespace lodestone
