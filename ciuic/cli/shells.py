"""The scripts that make bash, zsh and fish complete ``ciuic``; ``ciuic completion`` prints them."""

from typing import Final

__all__ = ["SCRIPTS"]

_BASH: Final = """\
_ciuic_completion() {
    local -a reply
    mapfile -d '' -t reply < <(
        CIUIC_LINE="${COMP_LINE:0:COMP_POINT}" CIUIC_BREAKS="$COMP_WORDBREAKS" \\
            _CIUIC_COMPLETE=bash_complete "$1" 2>/dev/null
    )
    COMPREPLY=("${reply[@]:1}")
    case ${reply[0]} in
        path)
            compopt -o filenames
            [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == */ ]] && compopt -o nospace
            ;;
        dir) compopt -o dirnames ;;
        file) compopt -o default ;;
    esac
    return 0
}
complete -o nosort -F _ciuic_completion ciuic ciuric
"""

_ZSH: Final = """\
#compdef ciuic ciuric
_ciuic_completion() {
    local kind line="${(j: :)words[1,CURRENT-1]} ${QIPREFIX}${PREFIX}"
    local -a reply directories others
    reply=("${(@0)$(CIUIC_LINE=$line _CIUIC_COMPLETE=zsh_complete ${words[1]} 2>/dev/null)}")
    kind=${reply[1]}
    shift reply
    case $kind in
        dir) _path_files -/ ;;
        file) _files ;;
        *)
            directories=(${(M)reply:#*/})
            others=(${reply:#*/})
            (( $#directories )) && compadd -S '' -a directories
            (( $#others )) && compadd -a others
            ;;
    esac
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _ciuic_completion "$@"
else
    compdef _ciuic_completion ciuic ciuric
fi
"""

_FISH: Final = """\
function _ciuic_completion
    set -l line (commandline -cp | string collect)
    set -l reply (env CIUIC_LINE="$line" _CIUIC_COMPLETE=fish_complete ciuic 2>/dev/null \\
        | string split0)
    set -l kind $reply[1]
    set -e reply[1]
    switch "$kind"
        case dir
            __fish_complete_directories (commandline -ct)
        case file
            __fish_complete_path (commandline -ct)
        case '*'
            set -q reply[1]; and printf '%s\\n' $reply
    end
end
complete --no-files --command ciuic --arguments "(_ciuic_completion)"
complete --no-files --command ciuric --arguments "(_ciuic_completion)"
"""

SCRIPTS: Final = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
