#include "common/base/awaited.h"

#include <memory>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace lodestone {
namespace {

TEST(Awaited, GivesWhatAnotherThreadHasSet) {
  for (int i = 0; i < 1000; ++i) {
    const Awaited<std::string> text;
    std::thread setter([text, i] { text.Set(std::to_string(i)); });
    EXPECT_EQ(text.Await(), std::to_string(i));
    setter.join();
  }
}

TEST(Awaited, GivesWhatWasSetBefore) {
  const Awaited<std::unique_ptr<int>> number;
  number.Set(std::make_unique<int>(7));
  EXPECT_EQ(*number.Await(), 7);
}

TEST(Awaited, MayBeGoneWhileItIsBeingSet) {
  for (int i = 0; i < 1000; ++i) {
    auto number = std::make_unique<Awaited<int>>();
    std::thread setter([copy = *number] { copy.Set(1); });
    EXPECT_EQ(number->Await(), 1);
    number.reset();
    setter.join();
  }
}

}  // namespace
}  // namespace lodestone
