#include "tools/psctl/verbs/serve.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/psctl/verbs/psctl_call.h"
#include "tools/psctl/text/exit_code.h"

namespace lodestone::psctl {
namespace {

using testing::HasSubstr;

// Regression: it was told as a model that cannot be served, by exit status 1.
TEST(ServeTest, AnAddressThatIsNoneIsAMistakeOfTheCommandLine) {
  const PsctlCall grpc({"serve", "model.safetensors", "--listen", "nowhere"});
  EXPECT_EQ(grpc.exit_code, kExitUsage);
  EXPECT_THAT(grpc.errors, HasSubstr("--listen"));
  const PsctlCall http({"serve", "model.safetensors", "--listen", "127.0.0.1:0", "--http-listen", "nowhere"});
  EXPECT_EQ(http.exit_code, kExitUsage);
  EXPECT_THAT(http.errors, HasSubstr("--http-listen"));
}

TEST(ServeTest, AModelThatThereIsNotIsNamed) {
  const PsctlCall serve({"serve", "there_is_no.safetensors", "--listen", "127.0.0.1:0"});
  EXPECT_EQ(serve.exit_code, kExitFailed);
  EXPECT_THAT(serve.errors, HasSubstr("there_is_no.safetensors"));
}

}  // namespace
}  // namespace lodestone::psctl
