#include "common/base/status.h"

#include "common/rpc/grpc_status.h"
#include "gtest/gtest.h"

namespace lodestone {
namespace {

TEST(Status, ContextStandsBeforeTheMessage) {
  EXPECT_EQ(Annotate(absl::NotFoundError("no such table"), "ps 1"), absl::NotFoundError("ps 1: no such table"));
  EXPECT_TRUE(Annotate(absl::OkStatus(), "ps 1").ok());
}

}  // namespace
}  // namespace lodestone
