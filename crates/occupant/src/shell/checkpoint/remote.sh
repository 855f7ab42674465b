# Checkpoints of a folder, kept with git's plumbing. Written for any POSIX shell; the lines above this one set
#   ol_do          take, list or restore        ol_work    the folder
#   ol_key         a name for its store         ol_store   where stores are, or nothing for the usual places
#   ol_id          what is restored; nothing is the newest
#   ol_label       a line that is kept with it  ol_allow   "anywhere" lets it be the home folder or /
#   ol_paths       names in the folder, a line each; nothing is all of it
#   ol_ignores     patterns that are left out, a line each
# and the last line of what it writes is one of
#   ok ID FILES LEFT_OUT        taken           ok ID CHANGED UNDO_ID    restored
#   ok                          listed, after lines of ID SECONDS LABEL
#   error CODE a sentence
#
# Git only stores content here, by its hash, and never looks at names: no attribute, filter, ignore rule, hook or nested
# repository means anything to it. Names, kinds and modes are in a list of our own, which is stored beside the content.

ol_fail() { printf 'error %s %s\n' "$1" "$2"; exit 1; }

umask 077
LC_ALL=C; export LC_ALL
unset CDPATH
ol_nl='
'
command -v git > /dev/null 2>&1 || ol_fail no_git 'git is not installed there'
ol_work=$(CDPATH='' cd -P -- "$ol_work" 2> /dev/null && pwd -P) || ol_fail no_folder 'the folder is not there'
ol_home=$(CDPATH='' cd -P -- "${HOME:-/}" 2> /dev/null && pwd -P) || ol_home=/
if [ "$ol_allow" != anywhere ]; then
  case $ol_work in
    / | "$ol_home") ol_fail too_wide 'checkpoints of the home folder or of / are only taken when they are asked for' ;;
  esac
fi

# Where it is kept: the first of these that can be written.
ol_found=
for ol_try in "$ol_store" "${XDG_STATE_HOME:-}" "$ol_home/.local/state" "${TMPDIR:-/tmp}/outlast-$(id -u)"; do
  [ -n "$ol_try" ] || continue
  if mkdir -p -- "$ol_try/outlast/checkpoints" 2> /dev/null && [ -w "$ol_try/outlast/checkpoints" ] &&
    [ -O "$ol_try/outlast/checkpoints" ]; then
    ol_found=$ol_try/outlast/checkpoints/$ol_key
    break
  fi
done
[ -n "$ol_found" ] || ol_fail no_store 'there is no folder there in which checkpoints can be kept'
mkdir -p -- "$ol_found/home" || ol_fail no_store 'there is no room for checkpoints there'
ol_found=$(CDPATH='' cd -P -- "$ol_found" && pwd -P) || ol_fail no_store 'the store of checkpoints cannot be entered'

# Nothing of the user's git reaches this one.
for ol_name in $(env | sed -n 's/^\(GIT_[A-Za-z0-9_]*\)=.*/\1/p'); do unset "$ol_name"; done
HOME=$ol_found/home
XDG_CONFIG_HOME=$HOME
GIT_DIR=$ol_found/git
GIT_CONFIG_NOSYSTEM=1
GIT_CONFIG_SYSTEM=/dev/null
GIT_CONFIG_GLOBAL=/dev/null
GIT_ATTR_NOSYSTEM=1
GIT_TERMINAL_PROMPT=0
GIT_AUTHOR_NAME=outlast
GIT_AUTHOR_EMAIL=outlast@localhost
GIT_COMMITTER_NAME=outlast
GIT_COMMITTER_EMAIL=outlast@localhost
export HOME XDG_CONFIG_HOME GIT_DIR GIT_CONFIG_NOSYSTEM GIT_CONFIG_SYSTEM GIT_CONFIG_GLOBAL GIT_ATTR_NOSYSTEM
export GIT_TERMINAL_PROMPT GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL GIT_COMMITTER_NAME GIT_COMMITTER_EMAIL
if [ ! -d "$GIT_DIR/objects" ]; then
  git init -q --bare --template= "$GIT_DIR" > /dev/null 2>&1 || ol_fail git_failed 'git cannot make its store there'
  git config gc.auto 0
  git config core.hooksPath /dev/null
fi

ol_tmp=$ol_found/tmp.$$
rm -rf -- "$ol_tmp"
mkdir -- "$ol_tmp" || ol_fail no_store 'there is no room for checkpoints there'
trap 'rm -rf -- "$ol_tmp"' EXIT
trap 'exit 1' HUP INT TERM
cd -P -- "$ol_work" || ol_fail no_folder 'the folder cannot be entered'
case "/$(printf '%s' "$ol_paths" | tr '\n' /)/" in
  */../*) ol_fail bad_path 'a path of a checkpoint must lie in its folder' ;;
esac

# `MODE PATH` of everything that counts, the mode with its kind and in hexadecimal. Names with a newline are left out.
ol_stat() {
  if stat -c %f . > /dev/null 2>&1; then set -- stat -c '%f %n'; else set -- stat -f '%Xp %N'; fi
  ol_tool=$1 ol_flag=$2 ol_form=$3
  set -- -name "*$ol_nl*"
  case $ol_found/ in
    "$ol_work"/*) set -- "$@" -o -path "./${ol_found#"${ol_work%/}"/}" ;;
  esac
  ol_ifs=$IFS; IFS=$ol_nl; set -f
  for ol_one in $ol_ignores; do
    ol_one=${ol_one%/}
    case $ol_one in
      /*) set -- "$@" -o -path ".$ol_one" ;;
      */*) set -- "$@" -o -path "./$ol_one" ;;
      ?*) set -- "$@" -o -name "$ol_one" ;;
    esac
  done
  ol_roots=
  for ol_one in $ol_paths; do
    if [ -e "./$ol_one" ] || [ -h "./$ol_one" ]; then ol_roots="$ol_roots$ol_nl./${ol_one%/}"; fi
  done
  [ -n "$ol_paths" ] || ol_roots=.
  for ol_one in $ol_roots; do
    find "$ol_one" \( "$@" \) -prune -o \( -type f -o -type d -o -type l \) -exec "$ol_tool" "$ol_flag" "$ol_form" {} + 2> /dev/null
  done
  set +f; IFS=$ol_ifs
}

# `MODE HASH PATH` of everything, with the content in the store. Leaves ol_left: what could not be read.
ol_read() {
  ol_stat | sort -u -k 2 > "$ol_tmp/all"
  ol_left=0
  sed -n 's/^8[0-9a-f]* //p' "$ol_tmp/all" > "$ol_tmp/files"
  if ! git hash-object -w --no-filters --stdin-paths < "$ol_tmp/files" > "$ol_tmp/hashes" 2> /dev/null; then
    : > "$ol_tmp/hashes"
    while IFS= read -r ol_path; do
      ol_hash=$(git hash-object -w --no-filters -- "$ol_path" 2> /dev/null) || { ol_hash=-; ol_left=$((ol_left + 1)); }
      printf '%s\n' "$ol_hash" >> "$ol_tmp/hashes"
    done < "$ol_tmp/files"
  fi
  sed -n 's/^a[0-9a-f]* //p' "$ol_tmp/all" > "$ol_tmp/links"
  : > "$ol_tmp/targets"
  while IFS= read -r ol_path; do
    ol_hash=$(readlink -- "$ol_path" | git hash-object -w --no-filters --stdin) || ol_hash=-
    printf '%s\n' "$ol_hash" >> "$ol_tmp/targets"
  done < "$ol_tmp/links"
  awk -v hashes="$ol_tmp/hashes" -v targets="$ol_tmp/targets" '
    { mode = $1; path = substr($0, length(mode) + 2); kind = substr(mode, 1, 1); hash = "=" }
    kind == "8" { if ((getline hash < hashes) < 1) hash = "-" }
    kind == "a" { if ((getline hash < targets) < 1) hash = "-" }
    hash != "-" { print mode, hash, path }
  ' "$ol_tmp/all" > "$ol_tmp/have"
}

ol_newest() { git for-each-ref --sort=-refname --count=1 --format='%(refname)' refs/checkpoints | sed 's|.*/||'; }

# Stores what ol_read found. Leaves ol_taken and ol_files.
ol_keep() {
  ol_list=$(git hash-object -w --no-filters --stdin < "$ol_tmp/have") &&
    ol_tree=$({
      printf '100644 blob %s\tlist\n' "$ol_list"
      awk '$2 != "=" && !seen[$2]++ { printf "100644 blob %s\t%s\n", $2, $2 }' "$ol_tmp/have"
    } | git mktree) &&
    ol_commit=$(printf '%s\n' "$1" | git commit-tree "$ol_tree") || ol_fail git_failed 'git cannot keep the checkpoint; is the disk full?'
  ol_last=$(ol_newest)
  ol_taken=$(printf '%s\n' "${ol_last:-0}" | awk '{ printf "%06d", $1 + 1 }')
  git update-ref "refs/checkpoints/$ol_taken" "$ol_commit" '' 2> /dev/null || ol_fail busy 'another checkpoint was taken at the same moment; try again'
  ol_files=$(awk 'END { print NR }' "$ol_tmp/have")
}

# One path as the list has it.
ol_make() {
  case $1 in
    4*) mkdir -p -- "$3" ;;
    a*)
      ol_target=$(git cat-file blob "$2") && rm -f -- "$3" && ln -s -- "$ol_target" "$3"
      ;;
    *)
      ol_new=${3%/*}/.outlast-restore.$$
      git cat-file blob "$2" > "$ol_new" && chmod "$(ol_octal "$1")" "$ol_new" && mv -f -- "$ol_new" "$3"
      ;;
  esac
}

# The permissions of a mode in hexadecimal, in octal.
ol_octal() { printf '%04o' $((0x$1 & 4095)); }

ol_restore() {
  git cat-file blob "$1:list" > "$ol_tmp/want" 2> /dev/null || ol_fail no_checkpoint 'there is no such checkpoint'
  sort "$ol_tmp/have" > "$ol_tmp/have.sorted"
  sort "$ol_tmp/want" > "$ol_tmp/want.sorted"
  comm -13 "$ol_tmp/have.sorted" "$ol_tmp/want.sorted" | sort -k 3 > "$ol_tmp/new"
  comm -23 "$ol_tmp/have.sorted" "$ol_tmp/want.sorted" > "$ol_tmp/old"
  ol_changed=$(awk '{ sub(/^[^ ]* [^ ]* /, ""); if (!seen[$0]++) n++ } END { print n + 0 }' "$ol_tmp/new" "$ol_tmp/old")
  # Folders that something is put into or taken from must let it; they get their modes back below.
  awk '{ sub(/^[^ ]* [^ ]* /, ""); sub(/\/[^\/]*$/, ""); if (!seen[$0]++) print }' "$ol_tmp/new" "$ol_tmp/old" > "$ol_tmp/parents"
  while IFS= read -r ol_path; do [ ! -d "$ol_path" ] || [ -h "$ol_path" ] || chmod u+rwx -- "$ol_path" 2> /dev/null; done < "$ol_tmp/parents"
  # What was not there, or was of another kind, goes: the deepest first.
  awk 'NR == FNR { kind = substr($1, 1, 1); sub(/^[^ ]* [^ ]* /, ""); want[$0] = kind; next }
    { kind = substr($1, 1, 1); sub(/^[^ ]* [^ ]* /, ""); if (want[$0] != kind) print }
  ' "$ol_tmp/want" "$ol_tmp/old" | sort -r > "$ol_tmp/gone"
  while IFS= read -r ol_path; do
    if [ -d "$ol_path" ] && [ ! -h "$ol_path" ]; then rmdir -- "$ol_path" 2> /dev/null; else rm -f -- "$ol_path"; fi
  done < "$ol_tmp/gone"
  while IFS= read -r ol_line; do
    ol_mode=${ol_line%% *} ol_rest=${ol_line#* }
    ol_hash=${ol_rest%% *} ol_path=${ol_rest#* }
    ol_make "$ol_mode" "$ol_hash" "$ol_path" || ol_fail not_restored "not everything could be restored; the checkpoint $ol_taken has what was there"
  done < "$ol_tmp/new"
  sed -n 's/^4\([0-9a-f]*\) = /4\1 /p' "$ol_tmp/want" | sort -r -k 2 > "$ol_tmp/folders"
  while IFS= read -r ol_line; do chmod "$(ol_octal "${ol_line%% *}")" "${ol_line#* }" 2> /dev/null; done < "$ol_tmp/folders"
}

case $ol_do in
  take)
    ol_read
    ol_keep "$ol_label"
    printf 'ok %s %s %s\n' "$ol_taken" "$ol_files" "$ol_left"
    ;;
  list)
    git for-each-ref --sort=-refname --format='%(refname) %(committerdate:raw) %(subject)' refs/checkpoints |
      sed 's|^refs/checkpoints/\([0-9]*\) \([0-9]*\) [-+0-9]*|\1 \2|'
    printf 'ok\n'
    ;;
  restore)
    ol_id=${ol_id:-$(ol_newest)}
    ol_commit=$(git rev-parse --verify -q "refs/checkpoints/$ol_id^{commit}") || ol_fail no_checkpoint 'there is no such checkpoint'
    ol_wanted=$ol_commit
    ol_read
    ol_keep "before $ol_id was restored"
    ol_restore "$ol_wanted"
    printf 'ok %s %s %s\n' "$ol_id" "$ol_changed" "$ol_taken"
    ;;
esac
