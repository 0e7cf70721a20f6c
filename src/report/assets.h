// The page's source files, which lancet_embed (CMakeLists.txt) compiles into the program.
#pragma once
#include <string_view>

namespace lancet::report::assets {

extern const std::string_view page_html, page_css, page_js, charts_js, uplot_js, uplot_css;

}  // namespace lancet::report::assets
