# What `cmake --install` and the Debian packages put where. Two components: `runtime` is the program
# and what an administrator needs; `development` is the library for C++ programs.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS ckfs RUNTIME COMPONENT runtime)
# A package of its own: users of local sources need no TLS.
if(TARGET ckfs-fetcher)
  install(TARGETS ckfs-fetcher RUNTIME DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/ckfs COMPONENT remote)
endif()

# mount(8) looks for helpers in /sbin and /usr/sbin.
install(PROGRAMS mount-helpers/mount.ckfs DESTINATION ${CMAKE_INSTALL_SBINDIR} COMPONENT runtime)

install(PROGRAMS mount-helpers/slurm/ckfs-export.sbatch
  DESTINATION ${CMAKE_INSTALL_DATADIR}/ckfs/slurm COMPONENT runtime)
install(FILES mount-helpers/kubernetes/export-job.yaml mount-helpers/kubernetes/loader-pod.yaml
  mount-helpers/kubernetes/export-pod.yaml mount-helpers/kubernetes/README.md
  mount-helpers/kubernetes/serve-pod.yaml mount-helpers/kubernetes/Containerfile DESTINATION ${CMAKE_INSTALL_DATADIR}/ckfs/kubernetes
  COMPONENT runtime)
install(PROGRAMS mount-helpers/kubernetes/build-image
  DESTINATION ${CMAKE_INSTALL_DATADIR}/ckfs/kubernetes COMPONENT runtime)
install(FILES mount-helpers/systemd/mnt-deepseek.mount mount-helpers/systemd/mnt-deepseek.automount
  mount-helpers/fstab.example DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/ckfs/examples
  COMPONENT runtime)
install(FILES mount-helpers/logrotate/ckfs RENAME ckfs.logrotate
  DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/ckfs/examples COMPONENT runtime)
install(PROGRAMS mount-helpers/prometheus/collect
  DESTINATION ${CMAKE_INSTALL_DATADIR}/ckfs/prometheus COMPONENT runtime)
install(FILES mount-helpers/prometheus/README.md mount-helpers/prometheus/example.prom
  DESTINATION ${CMAKE_INSTALL_DATADIR}/ckfs/prometheus COMPONENT runtime)
configure_file(cmake/install_by_prefix.cmake.in install/by_prefix.cmake @ONLY)
install(SCRIPT ${PROJECT_BINARY_DIR}/install/by_prefix.cmake COMPONENT runtime)
add_custom_target(uninstall COMMENT "Removing what was installed from here"
  COMMAND ${CMAKE_COMMAND} -DMANIFEST=${PROJECT_BINARY_DIR}/install_manifest.txt
  -P ${PROJECT_SOURCE_DIR}/cmake/uninstall.cmake VERBATIM)

find_program(GO_MD2MAN go-md2man)
if(GO_MD2MAN)
  set(man_pages)
  foreach(page ckfs.1 ckfs-recipe.5 mount.ckfs.8)
    if(NOT EXISTS ${PROJECT_SOURCE_DIR}/docs/man/${page}.md)
      continue()
    endif()
    string(REGEX MATCH "[0-9]$" section ${page})
    set(output ${PROJECT_BINARY_DIR}/man/${page})
    add_custom_command(OUTPUT ${output}.gz
      COMMAND ${GO_MD2MAN} -in ${PROJECT_SOURCE_DIR}/docs/man/${page}.md -out ${output}
      COMMAND gzip -9nf ${output}
      DEPENDS docs/man/${page}.md VERBATIM)
    list(APPEND man_pages ${output}.gz)
    install(FILES ${output}.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section} COMPONENT runtime)
  endforeach()
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/man)
  add_custom_target(man ALL DEPENDS ${man_pages})
else()
  message(STATUS "go-md2man not found: no man pages")
endif()

# The program prints its own completions, from the same table that parses its arguments.
if(NOT CMAKE_CROSSCOMPILING)
  set(completion_dir ${PROJECT_BINARY_DIR}/completions)
  file(MAKE_DIRECTORY ${completion_dir})
  set(completions)
  foreach(shell bash zsh fish)
    set(output ${completion_dir}/ckfs.${shell})
    add_custom_command(OUTPUT ${output} COMMAND ckfs completion ${shell} > ${output} DEPENDS ckfs
      VERBATIM)
    list(APPEND completions ${output})
  endforeach()
  add_custom_target(completions ALL DEPENDS ${completions})
  install(FILES ${completion_dir}/ckfs.bash RENAME ckfs COMPONENT runtime
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${completion_dir}/ckfs.fish COMPONENT runtime
    DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()

# The C library is in no Debian package yet: one of its own would follow its versions.
install(TARGETS ckfs_shared LIBRARY COMPONENT c NAMELINK_COMPONENT c)
install(DIRECTORY include/ckfs DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
install(TARGETS ${CKFS_API_LAYERS} EXPORT ckfsTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ckfs)
install(EXPORT ckfsTargets NAMESPACE ckfs:: DESTINATION ${config_dir} COMPONENT development)
configure_package_config_file(cmake/ckfsConfig.cmake.in ${PROJECT_BINARY_DIR}/ckfsConfig.cmake
  INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ckfsConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ckfsConfig.cmake ${PROJECT_BINARY_DIR}/ckfsConfigVersion.cmake
  DESTINATION ${config_dir} COMPONENT development)

set(doc_dir ${CMAKE_INSTALL_DATADIR}/doc)
# The pages that the README links to, under the names by which it does.
install(FILES README.md CHANGELOG.md DESTINATION ${doc_dir}/ckfs COMPONENT runtime)
install(DIRECTORY docs DESTINATION ${doc_dir}/ckfs COMPONENT runtime
  FILES_MATCHING PATTERN "*.md" PATTERN "*.json")

# Debian packages: `./dev package`. Policy wants two changelogs: the project's, and one of packages.
set(CPACK_PACKAGE_CONTACT "ckfs maintainers <maintainers@ckfs.example>")
# The program is linked to the libraries of the release that it is built on (fmt's and spdlog's have
# other names on each): the package's name says which. `apt install` of it on another release says
# what is missing, and changes nothing.
cmake_host_system_information(RESULT distribution QUERY DISTRIB_INFO)
if(distribution_ID)
  set(CPACK_DEBIAN_PACKAGE_RELEASE "1+${distribution_ID}${distribution_VERSION_ID}")
  set(built_on "${distribution_PRETTY_NAME}")
else()
  set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
  set(built_on "an unknown distribution")
endif()
string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)  # SOURCE_DATE_EPOCH where it is set
find_program(GZIP gzip)
if(GZIP)
  set(packages ckfs libckfs-dev)
  if(TARGET ckfs-fetcher)
    list(APPEND packages ckfs-remote)
  endif()
  foreach(package IN LISTS packages)
    set(package_dir ${PROJECT_BINARY_DIR}/package/${package})
    file(WRITE ${package_dir}/changelog.Debian
      "ckfs (${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium\n\n"
      "  * See changelog.gz.\n\n -- ${CPACK_PACKAGE_CONTACT}  ${now}\n")
    execute_process(COMMAND ${GZIP} -9nf ${package_dir}/changelog.Debian)
    execute_process(COMMAND ${GZIP} -9nc ${PROJECT_SOURCE_DIR}/CHANGELOG.md
      OUTPUT_FILE ${package_dir}/changelog.gz)
    if(package STREQUAL "ckfs")
      set(component runtime)
    elseif(package STREQUAL "ckfs-remote")
      set(component remote)
    else()
      set(component development)
    endif()
    install(FILES ${package_dir}/changelog.gz ${package_dir}/changelog.Debian.gz cmake/copyright
      DESTINATION ${doc_dir}/${package} COMPONENT ${component})
  endforeach()
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME ckfs)
set(CPACK_PACKAGE_VENDOR "The ckfs authors")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL runtime development)
if(TARGET ckfs-fetcher)
  list(APPEND CPACK_COMPONENTS_ALL remote)
endif()
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME ckfs)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_DEPENDS "fuse3, passwd")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "mount a model checkpoint and read it in other forms")
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION
"ckfs shows a model checkpoint as ordinary read-only files in another form,
for instance FP8 safetensors as BF16, whose bytes are computed on read.
This package was built on ${built_on}, and installs
there. On another release build it again: ./dev package.")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA
  "${PROJECT_SOURCE_DIR}/cmake/debian/conffiles;${PROJECT_SOURCE_DIR}/cmake/debian/postinst")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libckfs-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
  "libblosc-dev, libbz2-dev, libexpected-dev, libfmt-dev, libspdlog-dev, libssl-dev, liburing-dev, \
libxxhash-dev, libzstd-dev, nlohmann-json3-dev, zlib1g-dev")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
"The static library and headers behind ckfs: open a checkpoint, list its views,
read a range of a file, without a mount.")
set(CPACK_DEBIAN_REMOTE_PACKAGE_NAME ckfs-remote)
set(CPACK_DEBIAN_REMOTE_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_REMOTE_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_REMOTE_PACKAGE_DEPENDS "ckfs, ca-certificates")
set(CPACK_COMPONENT_REMOTE_DESCRIPTION
"The program by which ckfs reads sources that are not on this machine: the
Hugging Face hub, S3, Google Cloud Storage and web servers.")
include(CPack)
