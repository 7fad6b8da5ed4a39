// gRPC's credentials as its core has them. Its C++ layer sends tokens over TLS only, and lets calls be judged before
// their services see them on TLS ports only; the core does both on any connection. Used by credentials.cc.
//
// Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/security/credentials.h"
#include "common/security/token_file.h"
#include "grpc/grpc_security.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace lodestone {

// Channels over `make()`, whose calls carry the newest token of `token` (null: none); they keep `keep` alive. Unless
// `encrypted`, the calls of channels with a token that lead to another machine end with UNAUTHENTICATED.
class CoreChannelCredentials final : public grpc::ChannelCredentials {
 public:
  CoreChannelCredentials(const std::function<grpc_channel_credentials*()>& make, bool encrypted,
                         std::shared_ptr<TokenFile> token, std::shared_ptr<const void> keep);
  ~CoreChannelCredentials() override;

 private:
  grpc::SecureChannelCredentials* AsSecureCredentials() override { return nullptr; }
  std::shared_ptr<grpc::Channel> CreateChannelImpl(const std::string& target,
                                                   const grpc::ChannelArguments& settings) override;

  const bool local_only_;  // There is a token, and anybody on the way could read it.
  std::shared_ptr<const void> keep_;
  grpc_channel_credentials* core_;
};

// A server's ports over `make()`, whose calls go through `door` (null: freely); they keep `keep` alive.
class CoreServerCredentials final : public grpc::ServerCredentials {
 public:
  CoreServerCredentials(const std::function<grpc_server_credentials*()>& make, Credentials::Door door,
                        std::shared_ptr<const void> keep);
  ~CoreServerCredentials() override;

  // There is the door.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override;

  grpc_server_credentials* core_;
};

}  // namespace lodestone
