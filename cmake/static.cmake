# CKFS_STATIC: programs and a library that run wherever glibc is not older than the one that they are
# built with. Compile options are those of any other build, and so are the objects.

# Debian has these two as shared libraries only.
foreach(library fmt spdlog)
  add_library(ckfs_static_${library} STATIC ${CMAKE_CURRENT_LIST_DIR}/static/${library}.cc)
  target_compile_definitions(ckfs_static_${library} PRIVATE
    $<TARGET_PROPERTY:${library}::${library},INTERFACE_COMPILE_DEFINITIONS>)
  set(archive ${PROJECT_BINARY_DIR}/libckfs_static_${library}.a)
  set_target_properties(ckfs_static_${library} PROPERTIES
    ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  get_target_property(configurations ${library}::${library} IMPORTED_CONFIGURATIONS)
  foreach(configuration IN LISTS configurations)
    set_target_properties(${library}::${library} PROPERTIES
      IMPORTED_LOCATION_${configuration} ${archive} IMPORTED_SONAME_${configuration} "")
  endforeach()
  add_dependencies(${library}::${library} ckfs_static_${library})
endforeach()
# Its copy of fmt's functions comes from the other archive.
set_property(TARGET spdlog::spdlog APPEND PROPERTY INTERFACE_LINK_LIBRARIES fmt::fmt)

# What shared libraries bring along by themselves. An archive that needs others is a target, and so are
# those: of files CMake does not know which comes first.
function(ckfs_archive name)  # ARGN: what it needs
  list(POP_FRONT ${name}_LINK_LIBRARIES file)
  add_library(ckfs_archive_${name} STATIC IMPORTED)
  set_target_properties(ckfs_archive_${name} PROPERTIES
    IMPORTED_LOCATION ${file} INTERFACE_LINK_LIBRARIES "${ARGN};${${name}_LINK_LIBRARIES}")
  set_property(TARGET PkgConfig::${name} PROPERTY INTERFACE_LINK_LIBRARIES ckfs_archive_${name})
endfunction()
find_library(LZ4_ARCHIVE NAMES lz4 REQUIRED)
find_library(SNAPPY_ARCHIVE NAMES snappy REQUIRED)
ckfs_archive(zlib)
ckfs_archive(libzstd)
ckfs_archive(blosc ckfs_archive_zlib ckfs_archive_libzstd ${LZ4_ARCHIVE} ${SNAPPY_ARCHIVE})
ckfs_archive(libcrypto)
if(TARGET PkgConfig::libcurl)
  pkg_check_modules(libssl REQUIRED IMPORTED_TARGET libssl)
  ckfs_archive(libssl ckfs_archive_libcrypto)
  ckfs_archive(libcurl ckfs_archive_libssl)
endif()

add_link_options(-static-libstdc++ -Wl,--as-needed)
set(CMAKE_SKIP_RPATH ON)
