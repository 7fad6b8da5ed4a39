#include "common/config/yaml_tree.h"

#include <algorithm>
#include <istream>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/utf8.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/exceptions.h"
#include "yaml-cpp/parser.h"

namespace lodestone {
namespace {

constexpr std::string_view kStringTag = "tag:yaml.org,2002:str";

YamlMark MarkOf(const YAML::Mark& mark) { return {std::max(0, mark.line) + 1, std::max(0, mark.column) + 1}; }

bool Before(const YamlMark& a, const YamlMark& b) { return a.line != b.line ? a.line < b.line : a.column < b.column; }

bool IsNullText(std::string_view text) {
  return text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL";
}

// Builds the tree from yaml-cpp's events. Single-threaded; lives as long as one parse. After the first error it ignores
// what still comes, so that neither memory nor time grow with it.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(std::deque<YamlNode>* nodes) : nodes_(nodes) {}

  const YamlNode* root() const { return root_; }
  const std::optional<YamlTree::Error>& error() const { return error_; }
  const YamlMark& last_mark() const { return last_mark_; }
  const YamlMark& document_mark() const { return document_mark_; }

  void OnDocumentStart(const YAML::Mark& mark) override { document_mark_ = MarkOf(mark); }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (YamlNode* node = Append(YamlNode::Kind::kNull, mark, anchor)) complete_[anchor] = node;
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (error_) return;
    last_mark_ = MarkOf(mark);
    const auto found = complete_.find(anchor);
    if (found == complete_.end()) return Fail(last_mark_, "an alias inside the value that it names");
    Attach(found->second);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    const bool quoted = tag == "!" || tag == kStringTag;
    const bool null = !quoted && IsNullText(value);
    YamlNode* node = Append(null ? YamlNode::Kind::kNull : YamlNode::Kind::kScalar, mark, anchor);
    if (node == nullptr) return;
    if (!quoted && !CheckTag(tag)) return;
    node->text = value;
    node->quoted = quoted;
    complete_[anchor] = node;
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kList, mark, tag, anchor);
  }
  void OnSequenceEnd() override { Close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { Close(); }

 private:
  struct Level {
    YamlNode* node;
    YAML::anchor_t anchor;
  };

  void Fail(const YamlMark& mark, std::string message) {
    if (!error_) error_ = YamlTree::Error{mark, std::move(message)};
  }

  bool CheckTag(const std::string& tag) {
    if (tag.empty() || tag == "?" || tag == "!") return true;
    Fail(last_mark_, absl::StrCat("tags are not supported: ", tag.substr(0, 60)));
    return false;
  }

  void Attach(const YamlNode* node) {
    if (levels_.empty()) {
      root_ = node;
    } else {
      levels_.back().node->children.push_back(node);
    }
  }

  // Adds a node under the innermost open one; null after an error.
  YamlNode* Append(YamlNode::Kind kind, const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (error_) return nullptr;
    last_mark_ = MarkOf(mark);
    if (nodes_->size() >= kYamlNodesMax) {
      Fail(last_mark_, absl::StrCat("more than ", kYamlNodesMax, " values"));
      return nullptr;
    }
    YamlNode& node = nodes_->emplace_back();
    node.kind = kind;
    node.mark = last_mark_;
    Attach(&node);
    complete_.erase(anchor);
    return &node;
  }

  void Open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    YamlNode* node = Append(kind, mark, anchor);
    if (node == nullptr || !CheckTag(tag)) return;
    if (levels_.size() >= kYamlDepthMax) {
      return Fail(last_mark_, absl::StrCat("more than ", kYamlDepthMax, " lists and mappings within each other"));
    }
    levels_.push_back({node, anchor});
  }

  void Close() {
    if (error_) return;
    const Level level = levels_.back();
    levels_.pop_back();
    complete_[level.anchor] = level.node;
  }

  std::deque<YamlNode>* const nodes_;
  const YamlNode* root_ = nullptr;
  std::vector<Level> levels_;
  // By anchor: nodes that are whole, and so may be named by an alias. (0 is that of nodes without an anchor.)
  std::unordered_map<YAML::anchor_t, const YamlNode*> complete_;
  YamlMark document_mark_;
  YamlMark last_mark_;  // Of the newest node.
  std::optional<YamlTree::Error> error_;
};

// Finds what YAML does not allow anywhere (yaml-cpp takes some of it for the end of the text). `end` is where it ends.
std::optional<YamlTree::Error> CheckCharacters(std::string_view text, YamlMark* end) {
  YamlMark& mark = *end;
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8Length(text, i);
    const auto byte = static_cast<unsigned char>(text[i]);
    if (length == 0) return YamlTree::Error{mark, absl::StrFormat("byte 0x%02x: the text is not UTF-8", byte)};
    if ((byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r') || byte == 0x7f) {
      return YamlTree::Error{mark, absl::StrFormat("control character 0x%02x", byte)};
    }
    i += length;
    ++mark.column;
    if (byte == '\n') mark = {mark.line + 1, 1};
  }
  return std::nullopt;
}

// The first tab in the indentation of line `line`, counted from 1; none if only spaces indent it.
std::optional<YamlMark> TabAt(std::string_view text, int line) {
  for (int at = 1; at < line; ++at) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    text.remove_prefix(end + 1);
  }
  const size_t at = text.find_first_not_of(' ');
  if (at == std::string_view::npos || text[at] != '\t') return std::nullopt;
  return YamlMark{line, static_cast<int>(at) + 1};
}

// yaml-cpp's message in a user's words.
std::string MessageOf(const YAML::Exception& e) {
  if (e.msg == "illegal map value") return e.msg + ": is the line indented wrongly, or a `:` not in quotes?";
  if (e.msg == "end of map flow not found") return "a { is never closed";
  if (e.msg == "end of sequence flow not found") return "a [ is never closed";
  return e.msg;
}

// What yaml-cpp found after the node at `last` in `text`, which ends at `end`.
YamlTree::Error ErrorOf(const YAML::Exception& e, std::string_view text, const YamlMark& last, const YamlMark& end) {
  if (e.msg == "illegal EOF in scalar") return {last, "a quote that opens after this is never closed"};
  // Some errors at the end of the text have no place, or that of the beginning.
  YamlMark mark = e.mark.is_null() ? last : MarkOf(e.mark);
  if (Before(mark, last)) mark = last;
  if (Before(end, mark)) mark = end;
  if (const std::optional<YamlMark> tab = TabAt(text, mark.line)) return {*tab, "a tab: YAML is indented by spaces"};
  return {mark, MessageOf(e)};
}

}  // namespace

std::optional<YamlTree::Error> YamlTree::Parse(std::string_view text) {
  nodes_.clear();
  root_ = nullptr;
  if (text.size() > kYamlBytesMax) {
    return Error{{}, absl::StrCat("the text has ", text.size(), " bytes, more than ", kYamlBytesMax)};
  }
  YamlMark end;
  if (std::optional<Error> error = CheckCharacters(text, &end)) return error;
  TreeBuilder builder(&nodes_);
  std::optional<Error> error;
  try {
    // The comment at the end keeps yaml-cpp from taking a quote that is never closed for closed by the last newline.
    std::istringstream stream(std::string(text) + "\n#");
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    TreeBuilder rest(&nodes_);
    if (!builder.error() && parser.HandleNextDocument(rest)) {
      error = Error{rest.document_mark(), "the document ends before this (only one document is read)"};
    }
  } catch (const YAML::Exception& e) {
    error = ErrorOf(e, text, builder.last_mark(), end);
  } catch (const std::exception& e) {
    error = Error{builder.last_mark(), e.what()};
  }
  if (builder.error()) error = builder.error();  // It came before what yaml-cpp found later.
  if (error) {
    nodes_.clear();
    return error;
  }
  root_ = builder.root();
  return std::nullopt;
}

}  // namespace lodestone
