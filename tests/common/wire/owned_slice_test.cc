#include "common/wire/owned_slice.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace lodestone {
namespace {

std::string TextOf(const grpc::Slice& slice) { return {reinterpret_cast<const char*>(slice.begin()), slice.size()}; }

// A counted reference that converts to a plain pointer and back, without memory of its own.
class Leakable {
 public:
  explicit Leakable(std::shared_ptr<int>* references) : references_(references) {}
  Leakable(Leakable&& other) noexcept : references_(std::exchange(other.references_, nullptr)) {}
  ~Leakable() { EXPECT_EQ(references_, nullptr) << "it was leaked to the slice, not copied"; }

  std::shared_ptr<int>* Leak() { return std::exchange(references_, nullptr); }
  static void Release(std::shared_ptr<int>* references) { references->reset(); }

 private:
  std::shared_ptr<int>* references_;
};

TEST(OwnedSlice, RefersToTheBytesAndKeepsTheirOwnerUntilTheLastCopyIsGone) {
  // Longer than what a slice holds inline.
  auto owner = std::make_shared<const std::string>("bytes that belong to another object, and are many");
  const std::weak_ptr<const std::string> watch = owner;
  const char* const bytes = owner->data() + 6;
  std::vector<grpc::Slice> slices;
  slices.push_back(OwnedSlice(bytes, 4, owner));
  EXPECT_EQ(reinterpret_cast<const char*>(slices[0].begin()), bytes);
  owner.reset();
  slices.push_back(slices[0]);
  slices.erase(slices.begin());
  EXPECT_EQ(TextOf(slices[0]), "that");
  EXPECT_FALSE(watch.expired());
  slices.clear();
  EXPECT_TRUE(watch.expired());
}

TEST(OwnedSlice, ReleasesAReferenceThatLeaksExactlyOnce) {
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  const std::string bytes = "somewhere else";
  {
    const grpc::Slice slice = OwnedSlice(bytes.data(), bytes.size(), Leakable(&held));
    const grpc::Slice copy = slice;
    EXPECT_EQ(TextOf(copy), bytes);
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace lodestone
