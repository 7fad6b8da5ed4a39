#include "common/rpc/grpc_status.h"

#include "gtest/gtest.h"

namespace lodestone {
namespace {

TEST(GrpcStatus, KeepsCodeAndMessageThereAndBack) {
  const absl::Status status = absl::NotFoundError("no such table");
  EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
  EXPECT_TRUE(FromGrpc(ToGrpc(absl::OkStatus())).ok());
}

TEST(GrpcStatus, WhatABrokenConnectionEndsACallWithIsUnavailable) {
  for (const grpc::StatusCode code : {grpc::StatusCode::UNKNOWN, grpc::StatusCode::CANCELLED}) {
    EXPECT_EQ(FromCall(grpc::Status(code, "Stream removed")), absl::UnavailableError("Stream removed"));
  }
  EXPECT_EQ(FromCall(grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "who?")),
            absl::FailedPreconditionError("who?"));
  EXPECT_TRUE(FromCall(grpc::Status::OK).ok());
}

}  // namespace
}  // namespace lodestone
