// The page's parts, put into the program at build time (lancet_embed in third_party/cmake/LancetRooms.cmake).
#pragma once
#include <string_view>

namespace lancet::report::assets {

extern const std::string_view page_html, page_css, page_js, charts_js, uplot_js, uplot_css;

}  // namespace lancet::report::assets
