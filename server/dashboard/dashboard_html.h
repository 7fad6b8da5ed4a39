// The page, as server/dashboard/embed.sh makes it at build time.
#pragma once

#include <string_view>

namespace lodestone::server {

// One document with its style and script in it, and a policy that lets in nothing else.
extern const std::string_view kPageHtml;

}  // namespace lodestone::server
