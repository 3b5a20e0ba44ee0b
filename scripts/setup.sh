# For bash, sourced by quickstart and run-tests: what the project needs from the system, the build, and seconds of parts.

# Group, what shows that it is there (a command, pkg:MODULE of pkg-config, or file:PATTERN), package of Debian 12.
requirements='
build   gcc                               gcc
build   file:/usr/include/stdio.h         libc6-dev
build   cmake                             cmake
build   ninja                             ninja-build
build   pkg-config                        pkg-config
build   pkg:jansson                       libjansson-dev
build   pkg:yaml-0.1                      libyaml-dev
build   pkg:libpcre2-8                    libpcre2-dev
build   pkg:libutf8proc                   libutf8proc-dev
build   pkg:libxxhash                     libxxhash-dev
build   pkg:hwloc                         libhwloc-dev
build   pkg:cmocka                        libcmocka-dev
mpi     pkg:ompi-c                        libopenmpi-dev
mpi     mpiexec.openmpi                   openmpi-bin
mpich   pkg:mpich                         libmpich-dev
mpich   mpiexec.mpich                     mpich
clang   clang-14                          clang-14
clang   clang-format-14                   clang-format-14
clang   file:/usr/lib/llvm-14/lib/clang/*/include/omp.h                     libomp-14-dev
clang   file:/usr/lib/llvm-14/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a  libclang-rt-14-dev
'

say() # LINE…
{
    printf '%s\n' "$@"
}

is_there() # PROBE
{
    case $1 in
    pkg:*) pkg-config --exists "${1#pkg:}" 2>/dev/null ;;
    file:*) compgen -G "${1#file:}" >/dev/null ;;
    *) command -v "$1" >/dev/null ;;
    esac
}

missing() # GROUP…: the packages of what is not there
{
    local group probe package
    while read -r group probe package; do
        case " $* " in *" $group "*) is_there "$probe" || printf ' %s' "$package" ;; esac
    done <<<"$requirements"
}

# Installs what is missing of the groups: as root with apt-get, else says what to type and ends with status 2.
need() # GROUP…
{
    local packages
    packages=$(missing "$@")
    [ -n "$packages" ] || return 0
    local line="apt-get install -y --no-install-recommends$packages"
    if ! command -v apt-get >/dev/null; then
        say "missing (named as in Debian 12):$packages" >&2
        exit 2
    fi
    if [ "$(id -u)" != 0 ]; then
        say "missing:$packages" "Install with:" "  sudo apt-get update && sudo $line" >&2
        exit 2
    fi
    say "installing$packages"
    local log
    log=$(mktemp)
    if ! { apt-get update && DEBIAN_FRONTEND=noninteractive $line; } </dev/null >"$log" 2>&1; then
        cat "$log" >&2
        say "apt-get did not install:$packages" >&2
        exit 2
    fi
    rm -f "$log"
}

parts=

# Runs a command as a part whose seconds parts_print tells; its status is the command's.
part() # NAME COMMAND…
{
    local name=$1 begin=$SECONDS status=0
    shift
    "$@" || status=$?
    parts="$parts  $name $((SECONDS - begin)) s"
    return $status
}

parts_print()
{
    say "seconds:$parts"
}

# Configures and builds a preset of CMakePresets.json in build/PRESET; what the tools print is shown only when they fail.
build() # PRESET TARGET [CMAKE OPTION…]; TARGET '': all
{
    local preset=$1 target=$2 log=build/$1.log
    shift 2
    mkdir -p build
    if ! { cmake --preset "$preset" "$@" && cmake --build --preset "$preset" ${target:+--target $target}; } >"$log" 2>&1; then
        cat "$log" >&2
        return 1
    fi
}
