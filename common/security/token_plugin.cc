#include "common/security/token_plugin.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/security/incoming_call.h"

namespace lodestone {

TokenPlugin::TokenPlugin(std::shared_ptr<TokenFile> token, std::shared_ptr<const void> owner)
    : token_(std::move(token)), owner_(std::move(owner)) {}

grpc::Status TokenPlugin::GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                                      std::multimap<grpc::string, grpc::string>* metadata) {
  if (token_ != nullptr) metadata->emplace(kAuthorizationKey, absl::StrCat("Bearer ", token_->Get()));
  return grpc::Status::OK;
}

}  // namespace lodestone
