# Fails if an object file that is compiled for one instruction set defines a symbol that the linker
# may merge with one of another instruction set (weak, unique or common, and not in the namespace of
# a set): the copy that is kept could have instructions that the running processor lacks. Usage:
#   cmake -DNM=nm -DOBJECTS=a.o,b.o -P check_linkage.cmake
string(REPLACE "," ";" objects "${OBJECTS}")

# A pointer to a function of libstdc++, and Clang's call of std::terminate, which uses no vectors.
set(allowed "^(DW\\.ref\\.__gxx_personality_v0|__clang_call_terminate)$")
# Names that mention the namespace of the set: poolgrad::avx2 is 8poolgrad4avx2.
string(APPEND allowed "|(8poolgrad|S[0-9A-Z]*_)(6avx512|4avx2|9x86_64_v2|4neon|8baseline)")
set(mergeable)
foreach(object IN LISTS objects)
  execute_process(COMMAND "${NM}" --defined-only "${object}"
    OUTPUT_VARIABLE symbols RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${NM} cannot read ${object}")
  endif()
  string(REGEX MATCHALL "[^\n]+" lines "${symbols}")
  foreach(line IN LISTS lines)
    if(line MATCHES "^[0-9a-fA-F]* ?[WVuC] (.+)$")
      set(symbol "${CMAKE_MATCH_1}")
      if(NOT symbol MATCHES "${allowed}")
        get_filename_component(name "${object}" NAME)
        list(APPEND mergeable "${name}: ${symbol}")
      endif()
    endif()
  endforeach()
endforeach()
if(mergeable)
  list(REMOVE_DUPLICATES mergeable)
  list(JOIN mergeable "\n  " listed)
  message(FATAL_ERROR "symbols of one instruction set that the linker may merge with others "
    "(define them in poolgrad::POOLGRAD_ISA, or pass plain structs):\n  ${listed}")
endif()
