// The token of a channel's calls, as gRPC's call credentials.
//
// Thread-safe. Keeps the owner of the files that the channel reads alive for as long as the channel exists.
#pragma once

#include <map>
#include <memory>

#include "common/security/token_file.h"
#include "grpcpp/security/credentials.h"

namespace lodestone {

class TokenPlugin final : public grpc::MetadataCredentialsPlugin {
 public:
  // `token`: null if the calls carry none. `owner`: kept alive.
  TokenPlugin(std::shared_ptr<TokenFile> token, std::shared_ptr<const void> owner);

  // Reads a file at most, so gRPC calls GetMetadata on the calling thread.
  bool IsBlocking() const override { return false; }
  const char* GetType() const override { return "token"; }
  grpc::string DebugString() override { return "a token"; }
  grpc::Status GetMetadata(grpc::string_ref service_url, grpc::string_ref method, const grpc::AuthContext& channel,
                           std::multimap<grpc::string, grpc::string>* metadata) override;

 private:
  const std::shared_ptr<TokenFile> token_;
  const std::shared_ptr<const void> owner_;
};

}  // namespace lodestone
