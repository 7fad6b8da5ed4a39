// Tree of a YAML text, whose nodes have line and column; yaml_reader reads messages from it. Limits on bytes, depth
// and nodes keep hostile text from taking long, much memory or the stack.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lodestone {

inline constexpr size_t kYamlBytesMax = 1 << 20;  // Length of a text.
inline constexpr size_t kYamlDepthMax = 32;       // Lists and mappings within each other, as written.
inline constexpr size_t kYamlNodesMax = 100'000;  // Nodes of a tree, as written.

// A place in the text. Lines and columns count from 1.
struct YamlMark {
  int line = 1;
  int column = 1;
};

// A node. An alias is the node that it names, so that trees share nodes, but never in a cycle.
struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  YamlMark mark;
  std::string text;     // kScalar: its text without quotes and escapes.
  bool quoted = false;  // kScalar: written in quotes, as a block, or tagged !!str: a string whatever it looks like.
  std::vector<const YamlNode*> children;  // kList: its items. kMap: key, value, key, value, ...
};

// A parsed text; owns its nodes. Movable, not copyable. Immutable once parsed.
class YamlTree {
 public:
  // What is wrong with a text, and where.
  struct Error {
    YamlMark mark;
    std::string message;
  };

  YamlTree() = default;
  YamlTree(YamlTree&&) = default;
  YamlTree& operator=(YamlTree&&) = default;

  // Replaces the tree by that of `text`, UTF-8 with at most one document. After an error the tree is empty.
  std::optional<Error> Parse(std::string_view text);

  // Null for a text without any document.
  const YamlNode* root() const { return root_; }

 private:
  std::deque<YamlNode> nodes_;  // A deque: nodes point to each other.
  const YamlNode* root_ = nullptr;
};

}  // namespace lodestone
