# Read after llama.cpp's own project() line: its `common` library (servers, chat templates) is half of the build, and the
# Python package asks for it by force.
set(LLAMA_BUILD_COMMON OFF CACHE BOOL "" FORCE)
