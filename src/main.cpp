#include "lancet/cli/cli.h"

int main(int argc, char** argv) { return lancet::cli::main(argc, argv); }
