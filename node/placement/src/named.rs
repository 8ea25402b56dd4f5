//! Enums whose values have names: one row says a value and its name.

/// Declares such an enum: its rows are as those of any enum, with the name behind each, `Value = "name"`. Made of them: the
/// enum; `ALL`, in the order of the rows; `as_str`.
#[macro_export]
macro_rules! named {
    (
        $(#[$about:meta])*
        $vis:vis enum $Enum:ident {
            $($(#[$more:meta])* $Value:ident = $name:literal,)+
        }
    ) => {
        $(#[$about])*
        $vis enum $Enum {
            $($(#[$more])* $Value,)+
        }

        impl $Enum {
            /// All of them, in a fixed order.
            #[allow(dead_code, reason = "not each is counted or read")]
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$Value),+];

            /// Its name where people and programs meet it, such as settings, labels of metrics and JSON: stable.
            $vis const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$Value => $name,)+
                }
            }
        }
    };
}
