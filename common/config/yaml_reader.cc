#include "common/config/yaml_reader.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/suggest.h"
#include "common/config/yaml_field.h"
#include "common/config/yaml_scalar.h"
#include "common/config/yaml_tree.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/text_format.h"

namespace lodestone {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;
using google::protobuf::Reflection;
using google::protobuf::TextFormat;
using Kind = YamlNode::Kind;

constexpr int kMessageDepthMax = 64;    // Messages within each other, aliases followed.
constexpr size_t kVisitsMax = 200'000;  // Nodes read, aliases followed.

std::string Join(const std::string& path, const std::string& name) {
  return path.empty() ? name : absl::StrCat(path, ".", name);
}

// What a node is, for an error.
std::string Describe(const YamlNode& node) {
  switch (node.kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kScalar:
      return Quote(node.text);
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a mapping";
  }
  return "";
}

// A name from the text as part of a path.
std::string Shown(const std::string& name) {
  const std::string quoted = Quote(name);
  return quoted.substr(1, quoted.size() - 2);
}

// The key of a map's entry as text that is the same for equal keys.
std::string KeyText(const Message& entry, const FieldDescriptor& key) {
  if (key.cpp_type() == FieldDescriptor::CPPTYPE_STRING) return entry.GetReflection()->GetString(entry, &key);
  std::string text;
  TextFormat::PrintFieldValueToString(entry, &key, -1, &text);
  return text;
}

// Removes the entry with the same key as the last one, if there is one, so that the last replaces it.
void RemoveOlderEntry(const FieldDescriptor& field, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  const FieldDescriptor& key = *field.message_type()->map_key();
  const int last = reflection.FieldSize(*message, &field) - 1;
  const std::string text = KeyText(reflection.GetRepeatedMessage(*message, &field, last), key);
  for (int i = 0; i < last; ++i) {
    if (KeyText(reflection.GetRepeatedMessage(*message, &field, i), key) != text) continue;
    reflection.SwapElements(message, &field, i, last);
    reflection.RemoveLast(message, &field);
    return;
  }
}

// "unknown field", with the name that was meant or the place where a field of that name is.
std::string UnknownField(const Descriptor& type, const Descriptor& root, const std::string& written) {
  const std::string name = WithoutSynonym(written);
  const std::string suggestion = Suggestion(name, NamesOf(type));
  if (suggestion.find("did you mean") == std::string::npos) {
    const std::string elsewhere = FindBelow(root, name);
    if (!elsewhere.empty()) return absl::StrCat("unknown field (did you mean `", elsewhere, "`?)");
  }
  return absl::StrCat("unknown field", suggestion);
}

}  // namespace

// One text or override on its way into the message. Lives as long as one call of Read or Set.
class YamlReader::Walk {
 public:
  // `file` is empty for an override, whose place is "--set `set_path`".
  Walk(YamlReader* reader, std::string_view file, std::string set_path)
      : reader_(*reader), file_(file), set_path_(std::move(set_path)) {}

  void Error(const YamlMark& mark, const std::string& path, const std::string& what) {
    const bool own_path = !path.empty() && path != set_path_;
    reader_.AddErrorLine(absl::StrCat(Place(mark), ": ", own_path ? path + ": " : "", what));
  }

  // Reads a node into a message.
  void ReadMessage(const YamlNode& node, const std::string& path, Message* message) {
    if (!Enter(node, path)) return;
    ++depth_;
    if (node.kind == Kind::kMap) {
      ReadFields(node, path, message);
    } else if (const FieldDescriptor* chosen = ChoiceOf(node, *message->GetDescriptor())) {
      message->GetReflection()->MutableMessage(message, chosen);
    } else if (node.kind != Kind::kNull) {
      Error(node.mark, path, NotAMapping(node, *message->GetDescriptor()));
    }
    --depth_;
  }

  // Reads a node into a field, in place of the elements it has if it is repeated. `mark` is where its name stands.
  void ReadField(const YamlNode& node, const YamlMark& mark, const std::string& path, const FieldDescriptor& field,
                 Message* message) {
    reader_.locations_[path] = Place(mark);
    const Reflection& reflection = *message->GetReflection();
    if (field.is_repeated()) reflection.ClearField(message, &field);
    if (field.is_map()) {
      ReadMap(node, mark, path, field, message);
    } else if (field.is_repeated()) {
      ReadRepeated(node, mark, path, field, message);
    } else if (field.message_type() != nullptr) {
      ReadMessage(node, path, reflection.MutableMessage(message, &field));
    } else {
      ReadValue(node, mark, path, field, message);
    }
  }

  // Applies an override: goes down to the field, or the entry of a map, that set_path_ names, and reads `value` into
  // it.
  void Assign(const std::string& value, Message* message) {
    const Message& root = *message;
    const FieldDescriptor* field = nullptr;
    for (size_t begin = 0; begin <= set_path_.size();) {
      const std::string walked = set_path_.substr(0, begin == 0 ? 0 : begin - 1);
      if (field != nullptr && field->is_map()) return AssignEntry(set_path_.substr(begin), value, *field, message);
      if (field != nullptr && (field->is_repeated() || field->message_type() == nullptr)) {
        return Error({}, set_path_, absl::StrCat("`", walked, "` has no fields; set it as a whole"));
      }
      if (field != nullptr) message = message->GetReflection()->MutableMessage(message, field);
      const size_t end = std::min(set_path_.find('.', begin), set_path_.size());
      const std::string name = set_path_.substr(begin, end - begin);
      field = message->GetDescriptor()->FindFieldByName(name);
      if (field == nullptr) {
        return Error({}, set_path_, UnknownField(*message->GetDescriptor(), *root.GetDescriptor(), name));
      }
      begin = end + 1;
    }
    if (field->is_repeated() && value.empty()) return message->GetReflection()->ClearField(message, field);
    if (field->message_type() != nullptr) message->GetReflection()->ClearField(message, field);
    WithValue(value, *field, [&](const YamlNode& node) { ReadField(node, node.mark, set_path_, *field, message); });
  }

 private:
  std::string Place(const YamlMark& mark) const {
    return file_.empty() ? absl::StrCat("--set ", set_path_) : absl::StrCat(file_, ":", mark.line, ":", mark.column);
  }

  // False, after an error, when aliases make the text too large or too deep.
  bool Enter(const YamlNode& node, const std::string& path) {
    if (stopped_) return false;
    if (++visits_ <= kVisitsMax && depth_ < kMessageDepthMax) return true;
    stopped_ = true;
    Error(node.mark, path, "aliases expand to too much");
    return false;
  }

  // Appends an entry to a map field. Returns its key as text that is the same for equal keys.
  std::string ReadEntry(const YamlNode& key, const YamlNode& value, const std::string& path,
                        const FieldDescriptor& field, Message* message) {
    Message* entry = message->GetReflection()->AddMessage(message, &field);
    reader_.locations_[path] = Place(key.mark);
    const FieldDescriptor& key_field = *field.message_type()->map_key();
    const std::string key_error = ReadScalarField(key, key_field, entry);
    if (!key_error.empty()) Error(key.mark, path, absl::StrCat("key: ", key_error));
    const FieldDescriptor& value_field = *field.message_type()->map_value();
    if (value_field.message_type() != nullptr) {
      ReadMessage(value, path, entry->GetReflection()->MutableMessage(entry, &value_field));
    } else {
      ReadValue(value, key.mark, path, value_field, entry);
    }
    return KeyText(*entry, key_field);
  }

  // Reads an override's value into the entry of a map, in place of the one of the same key.
  void AssignEntry(const std::string& key, const std::string& value, const FieldDescriptor& field, Message* message) {
    YamlNode key_node;
    key_node.kind = Kind::kScalar;
    key_node.text = key;
    WithValue(value, *field.message_type()->map_value(), [&](const YamlNode& node) {
      ReadEntry(key_node, node, set_path_, field, message);
      RemoveOlderEntry(field, message);
    });
  }

  // Calls `read` with an override's value as a node: parsed, or the text itself where `field` takes it.
  template <typename Function>
  void WithValue(const std::string& value, const FieldDescriptor& field, Function read) {
    const bool yaml =
        value.starts_with('"') || value.starts_with('\'') || (field.is_repeated() && value.starts_with('['));
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING && !yaml) {
      YamlNode node;
      node.kind = Kind::kScalar;
      node.text = value;
      return read(node);
    }
    YamlTree tree;
    if (const std::optional<YamlTree::Error> error = tree.Parse(value)) return Error({}, set_path_, error->message);
    read(tree.root() == nullptr ? YamlNode() : *tree.root());
  }

  // The choice of a oneof that a node names, "adam" for {adam: {}}; null if it names none.
  static const FieldDescriptor* ChoiceOf(const YamlNode& node, const Descriptor& type) {
    if (node.kind != Kind::kScalar) return nullptr;
    const FieldDescriptor* named = type.FindFieldByName(node.text);
    return named != nullptr && named->message_type() != nullptr && named->real_containing_oneof() != nullptr ? named
                                                                                                             : nullptr;
  }

  static std::string NotAMapping(const YamlNode& node, const Descriptor& type) {
    const std::vector<std::string> names = NamesOf(type);
    return absl::StrCat("expected a mapping", names.empty() ? " (an empty one: {})" : " with ",
                        absl::StrJoin(names, ", "), "; got ", Describe(node));
  }

  void ReadFields(const YamlNode& node, const std::string& path, Message* message) {
    const Descriptor& type = *message->GetDescriptor();
    std::map<const FieldDescriptor*, YamlMark> seen;
    std::map<const OneofDescriptor*, std::pair<std::string, YamlMark>> chosen;
    for (size_t i = 0; i + 1 < node.children.size(); i += 2) {
      const YamlNode& key = *node.children[i];
      if (!Enter(key, path)) return;
      if (key.kind != Kind::kScalar) {
        Error(key.mark, path, absl::StrCat("expected the name of a field, got ", Describe(key)));
        continue;
      }
      const FieldDescriptor* field = type.FindFieldByName(key.text);
      if (field == nullptr) {
        Error(key.mark, Join(path, Shown(key.text)),
              key.text == "<<" ? "merge keys are not supported"
                               : UnknownField(type, *reader_.message_->GetDescriptor(), key.text));
        continue;
      }
      const std::string field_path = Join(path, key.text);
      const auto [first, is_new] = seen.emplace(field, key.mark);
      if (!is_new) {
        Error(key.mark, field_path, absl::StrCat("set before, at line ", first->second.line));
        continue;
      }
      if (const OneofDescriptor* oneof = field->real_containing_oneof()) {
        const auto [other, is_only] = chosen.emplace(oneof, std::make_pair(key.text, key.mark));
        if (!is_only) {
          Error(key.mark, field_path,
                absl::StrCat("only one of ", absl::StrJoin(NamesOf(*oneof), ", "), " may be set; `",
                             other->second.first, "` is, at line ", other->second.second.line));
          continue;
        }
      }
      ReadField(*node.children[i + 1], key.mark, field_path, *field, message);
    }
  }

  void ReadRepeated(const YamlNode& node, const YamlMark& mark, const std::string& path, const FieldDescriptor& field,
                    Message* message) {
    if (node.kind == Kind::kNull) return Error(mark, path, "has no value (an empty list is [])");
    if (node.kind != Kind::kList) return ReadElement(node, node.mark, path, field, message);
    for (size_t i = 0; i < node.children.size() && !stopped_; ++i) {
      const std::string element_path = absl::StrCat(path, "[", i, "]");
      reader_.locations_[element_path] = Place(node.children[i]->mark);
      ReadElement(*node.children[i], node.children[i]->mark, element_path, field, message);
    }
  }

  void ReadElement(const YamlNode& node, const YamlMark& mark, const std::string& path, const FieldDescriptor& field,
                   Message* message) {
    if (field.message_type() != nullptr) {
      ReadMessage(node, path, message->GetReflection()->AddMessage(message, &field));
    } else {
      ReadValue(node, mark, path, field, message);
    }
  }

  void ReadMap(const YamlNode& node, const YamlMark& mark, const std::string& path, const FieldDescriptor& field,
               Message* message) {
    if (node.kind == Kind::kNull) return Error(mark, path, "has no value (an empty mapping is {})");
    if (node.kind != Kind::kMap) {
      return Error(node.mark, path, absl::StrCat("expected a mapping, got ", Describe(node)));
    }
    std::map<std::string, YamlMark> seen;
    for (size_t i = 0; i + 1 < node.children.size() && !stopped_; i += 2) {
      const YamlNode& key = *node.children[i];
      if (key.kind != Kind::kScalar) {
        Error(key.mark, path, absl::StrCat("expected a key, got ", Describe(key)));
        continue;
      }
      const std::string entry_path = Join(path, Shown(key.text));
      const auto [first, is_new] =
          seen.emplace(ReadEntry(key, *node.children[i + 1], entry_path, field, message), key.mark);
      if (!is_new) Error(key.mark, entry_path, absl::StrCat("set before, at line ", first->second.line));
    }
  }

  // Reads one value that is no message.
  void ReadValue(const YamlNode& node, const YamlMark& mark, const std::string& path, const FieldDescriptor& field,
                 Message* message) {
    if (!Enter(node, path)) return;
    if (node.kind == Kind::kNull) return Error(mark, path, "has no value");
    if (node.kind != Kind::kScalar) {
      return Error(node.mark, path, absl::StrCat("expected one value, got ", Describe(node)));
    }
    std::string error = ReadScalarField(node, field, message);
    if (error.empty()) return;
    if (field.is_repeated() && node.text.find(',') != std::string::npos) error += " (a list is written [a, b])";
    Error(node.mark, path, error);
  }

  YamlReader& reader_;
  const std::string file_;
  const std::string set_path_;
  size_t visits_ = 0;
  int depth_ = 0;
  bool stopped_ = false;
};

void YamlReader::Read(std::string_view text, std::string_view name) {
  Walk walk(this, name, "");
  YamlTree tree;
  if (const std::optional<YamlTree::Error> error = tree.Parse(text)) {
    return walk.Error(error->mark, "", error->message);
  }
  if (tree.root() != nullptr) walk.ReadMessage(*tree.root(), "", message_);
}

void YamlReader::Set(std::string_view assignment) {
  const size_t equals = assignment.find('=');
  const std::string path(assignment.substr(0, equals));
  Walk walk(this, "", path);
  if (equals == std::string_view::npos || path.empty()) {
    return AddErrorLine(absl::StrCat("--set ", std::string(assignment), ": expected PATH=VALUE"));
  }
  walk.Assign(std::string(assignment.substr(equals + 1)), message_);
}

void YamlReader::AddErrorLine(std::string line) {
  if (errors_.size() < kReadErrorsMax) errors_.push_back(std::move(line));
  ++error_count_;
}

void YamlReader::AddError(const std::string& path, const std::string& what) {
  for (std::string around = path; !around.empty();) {
    const auto found = locations_.find(around);
    if (found != locations_.end()) {
      const bool same = found->second == absl::StrCat("--set ", path);
      return AddErrorLine(absl::StrCat(found->second, ": ", same ? "" : path + ": ", what));
    }
    const size_t end = around.find_last_of(".[");
    around.resize(end == std::string::npos ? 0 : end);
  }
  AddErrorLine(absl::StrCat(path, ": ", what));
}

absl::Status YamlReader::status() const {
  if (error_count_ == 0) return absl::OkStatus();
  std::string text = absl::StrJoin(errors_, "\n");
  if (error_count_ > errors_.size()) absl::StrAppend(&text, "\n... and ", error_count_ - errors_.size(), " more");
  return absl::InvalidArgumentError(text);
}

}  // namespace lodestone
