# cmake -DNM=nm -DLIBRARY=x.so "-DSYMBOLS=a;b" -P CheckExports.cmake: fails unless x.so exports a and b
execute_process(COMMAND "${NM}" -D --defined-only "${LIBRARY}" OUTPUT_VARIABLE exported
                COMMAND_ERROR_IS_FATAL ANY)
foreach(symbol IN LISTS SYMBOLS)
  if(NOT exported MATCHES " T ${symbol}\n")
    message(FATAL_ERROR "${LIBRARY} does not export ${symbol}: extern \"C\" and default visibility needed")
  endif()
endforeach()
